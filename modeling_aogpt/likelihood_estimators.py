# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Estimators of log-likelihoods: scores of rows, ensembles over context orders, and the masked-diffusion bound.

The ensemble over context orders (Eq. 4) is p_ens(x_i | context), the mean of p(x_i | permuted context) over M
permutations of the context. The current order of the context is always one of them. The ensemble gain is log p_ens -
log p, summed over ranks, where p is the probability for the current order.

If the gain is computed only at some ranks, it is estimated from randomly drawn ranks or contexts. The log-likelihood of
the order itself is always computed exactly, since it takes only n rows. The large variation of log p between tokens
thus adds no sampling error. A context of fewer than two tokens has only one order, so its gain is 0.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel

from .devices import draw_uniform
from .orders import (
    group_orders,
    index_by_position,
    index_by_rank,
    random_orders,
    token_mask,
    token_positions,
)
from .rows import PADDING, branch_mask, branch_rows, chain, parallel_queries
from .validation import check_choice, check_even, check_integer, prepare_input_ids

MASKINGS = ("bernoulli", "fixed_count")

# Largest number of rows in a forward pass.
ROWS_PER_PASS = 4096

# Largest number of rows whose logits are in memory at once.
ROWS_PER_HEAD_CALL = 1024

# Largest number of logits in memory at once. In float32, they take 206 MB.
LOGITS_PER_HEAD_CALL = 1024 * 50304

# Length of the shortest context with more than one order.
MIN_ENSEMBLE_CONTEXT = 2

# Function score(is_masked, times) that returns the log-probabilities (batch, n), by position, of the tokens at which
# `is_masked` (batch, n) is True, and 0 elsewhere. `times` (batch,) are diffusion times.
MaskedScores = Callable[[torch.BoolTensor, torch.Tensor], torch.Tensor]


def token_log_probs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    ids: torch.LongTensor,
    num_valid_tokens: int,
) -> torch.Tensor:
    """
    Return the float64 log-probability (rows,) of one id in each row, normalized over the ids of text.

    Args:
        head (`Callable`): Maps hidden states to logits (rows, vocab_size).
        hidden_states (`torch.Tensor` of shape `(rows, hidden_size)`): Last hidden states.
        ids (`torch.LongTensor` of shape `(rows,)`): The id to score in each row.
        num_valid_tokens (`int`): Number of ids of text.
    """
    num_rows, scores = max(1, min(ROWS_PER_HEAD_CALL, LOGITS_PER_HEAD_CALL // num_valid_tokens)), []
    for states, targets in zip(hidden_states.split(num_rows), ids.split(num_rows), strict=True):
        logits = head(states)[:, :num_valid_tokens]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores.append(-nn.functional.cross_entropy(logits, targets, reduction="none").double())
    return torch.cat(scores)


class RowScorer:
    """
    Scorer that computes log-probabilities of tokens in any order (see `rows.py` for rows and branches).

    Args:
        model (`PreTrainedModel`): A decoder with a head.
        input_ids (`torch.LongTensor` of shape `(batch, n)`): The sequences.
        attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding.
        rows_per_pass (`int`): Largest number of rows in a forward pass.

    Attributes:
        is_token (`torch.BoolTensor` of shape `(batch, n)`): False at padding.
        num_tokens (`torch.LongTensor` of shape `(batch,)`): Number of tokens in each sequence.
        num_rows (`int`): Number of rows computed so far, including padding.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        rows_per_pass: int,
    ) -> None:
        check_integer("rows_per_pass", rows_per_pass)
        self.model, self.rows_per_pass, self.num_rows = model, rows_per_pass, 0
        self.input_ids = prepare_input_ids(model, input_ids, attention_mask)
        self.is_token = token_mask(input_ids, attention_mask)
        self.num_tokens = self.is_token.sum(dim=-1)
        self.positions = token_positions(self.is_token)

    def copies_per_pass(self, length: int) -> int:
        """Return how many copies of the batch, with `length` rows per sequence, a pass may contain (at least 1)."""
        return max(1, self.rows_per_pass // max(1, len(self.input_ids) * length))

    def score(self, order: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        """
        Return the log-probability of every token of a branch given the context and the earlier tokens of the branch.

        Args:
            order (`torch.LongTensor` of shape `(copies * batch, rows)`): Position that each row predicts. The batch may
                be repeated `copies` times.
            branches (`torch.LongTensor` of the same shape): Branch of each row (see `rows.py`).

        Returns:
            `torch.Tensor` of the same shape, float64, with 0 at context and padding.
        """
        scores = torch.zeros(order.shape, dtype=torch.float64, device=order.device)
        num_rows = (branches != PADDING).sum(dim=-1)
        by_length = num_rows.argsort(descending=True)  # sequences of similar length share a pass
        by_length = by_length[: int((num_rows > 0).sum())]
        lengths, start = num_rows[by_length].tolist(), 0
        while start < len(lengths):
            length = lengths[start]
            selected = by_length[start : start + max(1, self.rows_per_pass // length)]
            scores[selected, :length] = self._run(selected, order[selected, :length], branches[selected, :length])
            start += len(selected)
        return scores

    def _run(self, selected: torch.LongTensor, order: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        self.num_rows += order.numel()
        ids, positions = (
            index_by_rank(values[selected % len(self.input_ids)], order) for values in (self.input_ids, self.positions)
        )
        hidden_states = self.model.model(
            **branch_rows(ids, positions, branches), attention_mask=branch_mask(branches)
        ).last_hidden_state
        is_scored = branches >= 0
        scores = torch.zeros(order.shape, dtype=torch.float64, device=order.device)
        scores[is_scored] = token_log_probs(
            self.model.apply_head, hidden_states[is_scored], ids[is_scored], self.model.config.num_valid_tokens
        )
        return scores


# ---------------------------------------------------------------------------------------- ensembles of context orders


def permute_context(
    order: torch.LongTensor, num_context: torch.LongTensor, generator: torch.Generator | None
) -> torch.LongTensor:
    """Permute the first `num_context` (batch,) entries of each order (batch, rows) at random, and keep the rest."""
    ranks = torch.arange(order.shape[1], device=order.device).double()
    keys = draw_uniform(*order.shape, generator=generator, device=order.device)
    return index_by_rank(order, torch.where(ranks < num_context[:, None], keys, 1 + ranks).argsort(dim=-1))


def score_permutations(
    scorer: RowScorer,
    order: torch.LongTensor,
    num_context: torch.LongTensor,
    branches: torch.LongTensor,
    num_permutations: int,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Score tokens under random permutations of the context: return log(mean of p) and mean of log p, both (batch, rows).

    `order` and `branches` are as in [`RowScorer.score`], for one copy of the batch.
    """
    log_sum = torch.full(order.shape, -torch.inf, dtype=torch.float64, device=order.device)
    sum_of_logs = torch.zeros_like(log_sum)
    copies = scorer.copies_per_pass(order.shape[1])
    for start in range(0, num_permutations, copies):
        number = min(copies, num_permutations - start)
        permuted = [permute_context(order, num_context, generator) for _ in range(number)]
        scores = scorer.score(torch.cat(permuted), branches.repeat(number, 1)).view(number, *order.shape)
        log_sum = torch.logaddexp(log_sum, scores.logsumexp(dim=0))
        sum_of_logs += scores.sum(dim=0)
    return log_sum - math.log(num_permutations), sum_of_logs / num_permutations


def ensemble_log_probs(
    scores: torch.Tensor,
    scorer: RowScorer,
    order: torch.LongTensor,
    num_context: torch.LongTensor,
    branches: torch.LongTensor,
    ensemble_size: int,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """
    Return log p_ens (batch, rows) of an ensemble of `ensemble_size` orders of the context.

    These are the current order, for which log p is given as `scores`, and random permutations of the context.
    """
    if ensemble_size == 1:
        return scores
    others, _ = score_permutations(scorer, order, num_context, branches, ensemble_size - 1, generator)
    return torch.logaddexp(scores, others + math.log(ensemble_size - 1)) - math.log(ensemble_size)


def draw_context_sizes(
    num_gaining: torch.LongTensor, num_draws: int, generator: torch.Generator | None
) -> list[torch.LongTensor]:
    """
    Draw stratified context sizes, a list of `num_draws` tensors (batch,).

    Each size is drawn uniformly from `num_gaining` (batch,) sizes, of which `MIN_ENSEMBLE_CONTEXT` is the smallest.
    """
    draws = draw_stratified(num_draws, len(num_gaining), generator, num_gaining.device)
    return list(MIN_ENSEMBLE_CONTEXT + (draws * num_gaining).floor().long())


def ensemble_gain_along_orders(
    scorer: RowScorer,
    orders: torch.LongTensor,
    scores: torch.Tensor,
    ensemble_size: int,
    num_ranks: int | None,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Compute the ensemble gain at all ranks of given orders, or estimate the gain without bias from random ranks.

    The random ranks are stratified. The gain at rank r takes (M - 1)(r + 1) rows.

    Args:
        scorer (`RowScorer`): The scorer.
        orders (`torch.LongTensor` of shape `(batch, n)`): The orders, with padding at the end.
        scores (`torch.Tensor` of shape `(batch, n)`): Log-probability of each token under these orders, by rank.
        ensemble_size (`int`): Size M of the ensemble.
        num_ranks (`int`, *optional*): Number of random ranks. By default, all ranks are used.
        generator (`torch.Generator`, *optional*): Source of randomness.

    Returns:
        The gain (batch, n) by rank, and one estimate of its sum over ranks for each drawn rank, (draws, batch). The
        mean of these estimates is the sum of the gain.
    """
    length, num_tokens = orders.shape[1], scorer.num_tokens
    num_gaining = (num_tokens - MIN_ENSEMBLE_CONTEXT).clamp(min=0)
    if num_ranks is None:
        all_ranks = range(MIN_ENSEMBLE_CONTEXT, int(num_tokens.max()))
        ranks, weights = [torch.full_like(num_tokens, rank) for rank in all_ranks], torch.ones_like(num_tokens).double()
    else:
        ranks = draw_context_sizes(num_gaining, num_ranks, generator)
        weights = num_gaining.double() / num_ranks
    gain, draws = torch.zeros_like(scores), []
    for rank in ranks:
        branches = chain(rank, torch.where(rank < num_tokens, rank + 1, 0), length)
        current = scores.masked_fill(branches < 0, 0.0)
        ensemble = ensemble_log_probs(current, scorer, orders, rank, branches, ensemble_size, generator)
        gain_at_rank = (ensemble - current).masked_fill(branches < 0, 0.0) * weights[:, None]
        gain += gain_at_rank
        draws.append(gain_at_rank.sum(dim=-1) * len(ranks))
    return gain, torch.stack(draws) if draws else scores.new_zeros(2, len(orders))


def ensemble_gain_of_random_orders(
    scorer: RowScorer, ensemble_size: int, num_draws: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Estimate the mean ensemble gain over all orders without bias, from random contexts as in masked diffusion (Eq. 2).

    A draw is a random context of random size l. The n - l other tokens are predicted in one pass for each of M random
    permutations of the context. Any of these permutations could be the current order, so log p is averaged over all of
    them. A draw takes M n rows.

    Returns:
        The gain (batch, n) by position, and one estimate of its sum for each draw, (num_draws, batch). The mean of
        these estimates is the sum of the gain.
    """
    num_tokens, (batch_size, length) = scorer.num_tokens, scorer.input_ids.shape
    num_gaining = (num_tokens - MIN_ENSEMBLE_CONTEXT).clamp(min=0)
    gain, draws = torch.zeros(batch_size, length, dtype=torch.float64, device=num_tokens.device), []
    for num_context in draw_context_sizes(num_gaining, num_draws, generator):
        orders = random_orders(batch_size, length, generator=generator, device=num_tokens.device)
        orders = group_orders(orders, (~scorer.is_token).long())
        branches = parallel_queries(num_context, torch.where(num_gaining > 0, num_tokens, 0), length)
        ensemble, single = score_permutations(scorer, orders, num_context, branches, ensemble_size, generator)
        weights = num_gaining.double() / (num_tokens - num_context).clamp(min=1)
        gain_of_draw = (ensemble - single) * weights[:, None]
        gain += index_by_position(gain_of_draw, orders) / num_draws
        draws.append(gain_of_draw.sum(dim=-1))
    return gain, torch.stack(draws)


# -------------------------------------------------------------------------------------------- masked-diffusion bound


def draw_stratified(
    num_draws: int, batch_size: int, generator: torch.Generator | None, device: torch.device | str | None
) -> torch.Tensor:
    """Draw float64 numbers (num_draws, batch) uniformly from [0, 1), two in each of num_draws / 2 equal strata."""
    draws = draw_uniform(num_draws, batch_size, generator=generator, device=device)
    strata = torch.arange(num_draws, device=device) // 2
    return (strata[:, None] + draws) / (num_draws // 2)


def draw_masks(
    is_target: torch.BoolTensor, times: torch.Tensor, masking: str, generator: torch.Generator | None
) -> tuple[torch.BoolTensor, torch.Tensor]:
    """
    Draw the targets to mask at random, at least one in each sequence.

    Args:
        is_target (`torch.BoolTensor` of shape `(batch, n)`): True at positions that may be masked.
        times (`torch.Tensor` of shape `(batch,)`): Diffusion times in (0, 1].
        masking (`str`): See [`diffusion_bound`].
        generator (`torch.Generator`, *optional*): Source of randomness.

    Returns:
        A boolean tensor (batch, n) that is True at masked positions, and the weight (batch,) of the log-probabilities
        of these positions in the bound.
    """
    num_targets = is_target.sum(dim=-1)
    draws = draw_uniform(*is_target.shape, generator=generator, device=is_target.device)
    if masking == "fixed_count":
        num_masked = (times * num_targets).ceil().clamp(min=1)
        ranks = draws.masked_fill(~is_target, 1.0).argsort(dim=-1).argsort(dim=-1)
        return (ranks < num_masked[:, None]) & is_target, num_targets / num_masked
    # Each target is masked with probability t, conditioned on at least one target being masked. Without this condition,
    # a draw without masked targets would take a pass and contribute nothing. The variance would also be infinite: for
    # small t, a single target is masked with probability of about n t, which decreases more slowly than its squared
    # weight 1 / t^2 increases.
    log_kept = torch.log1p(-times)
    probability_of_any = -torch.expm1(num_targets * log_kept)
    first_draw = draw_uniform(len(times), generator=generator, device=times.device)
    first = (torch.log1p(-first_draw * probability_of_any) / log_kept).floor().clamp(max=num_targets - 1)
    numbers, first = token_positions(is_target), first[:, None]
    is_masked = (numbers == first) | ((numbers > first) & (draws < times[:, None]))
    return is_masked & is_target, probability_of_any / times


def diffusion_bound(
    score: MaskedScores,
    is_target: torch.BoolTensor,
    num_times: int,
    masking: str,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Estimate the masked-diffusion bound on the log-likelihood (Eq. 1) from stratified random diffusion times.

    The bound is log p(x) >= - integral over t in (0, 1] of (1/t) E[sum over masked i of -log p(x_i | x_t)], where each
    token is masked with probability t. Masking a uniform number k of n tokens instead, with weight n / k, has the same
    mean for a model that does not depend on t (second line of Eq. 2), and less variance.

    Args:
        score (`MaskedScores`): Function that returns the log-probabilities of masked tokens.
        is_target (`torch.BoolTensor` of shape `(batch, n)`): True at positions to score. Other positions are context
            and are never masked.
        num_times (`int`): Number of diffusion times. It must be even, since two times are drawn in each stratum.
        masking (`str`): With `"bernoulli"`, each target is masked with probability t, conditioned on at least one
            target being masked (Eq. 1). With `"fixed_count"`, exactly ceil(t n) of n targets are masked (Eq. 2).
        generator (`torch.Generator`, *optional*): Source of randomness.

    Returns:
        The contribution of each token to the bound (batch, n), by position, and the standard error (batch,) of their
        sum.
    """
    check_even("num_times", num_times)
    check_choice("masking", masking, MASKINGS)
    per_token = torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
    draws = []
    for times in 1 - draw_stratified(num_times, len(is_target), generator, is_target.device):
        is_masked, weights = draw_masks(is_target, times, masking, generator)
        scores = score(is_masked, times) * weights[:, None]
        per_token += scores / num_times
        draws.append(scores.sum(dim=-1))
    return per_token, standard_error_of_pairs(torch.stack(draws))


# --------------------------------------------------------------------------------------------------- standard errors


def standard_error_of_mean(values: torch.Tensor) -> torch.Tensor:
    """Return the standard error (batch,) of the mean of independent draws (draws, batch); NaN for a single draw."""
    if len(values) == 1:
        return torch.full_like(values[0], torch.nan)
    return values.std(dim=0) / len(values) ** 0.5


def standard_error_of_pairs(values: torch.Tensor) -> torch.Tensor:
    """
    Return the standard error (batch,) of the mean of stratified draws (draws, batch).

    Draws 0 and 1 are from one stratum, draws 2 and 3 from the next, and so on. The square of half the difference of
    such a pair is an unbiased estimate of the variance of the pair's mean.
    """
    differences = values[0::2] - values[1::2]
    return differences.square().sum(dim=0).sqrt() / len(values)
