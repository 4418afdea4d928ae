# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of whole sequences, and of some tokens given others, computed by a decoder in any order.

The ensemble over context orders (Eq. 4) is p_ens(x_i | context), the mean of p(x_i | permuted context) over M
permutations of the context. One of these permutations is always the current order, in which the context is read without
an ensemble. The ensemble gain is log p_ens - log p, summed over ranks, where p is the probability for the current
order. A context of fewer than two tokens has only one order, so its gain is 0.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from .cpu_inference import copy_for_cpu
from .devices import check_generator, draw_uniform, inference_method, rows_per_head_call
from .orders import (
    CONTEXT,
    PADDING,
    Orders,
    branch_mask,
    branch_rows,
    chain,
    group_orders,
    index_by_position,
    index_by_rank,
    parallel_queries,
    random_orders,
    step_rows,
    token_positions,
)
from .validation import (
    check_aligned,
    check_batch,
    check_even,
    check_finite,
    check_integer,
    check_integer_dtype,
    check_needs_targets,
    check_orders,
    prepare_input_ids,
    prepare_targets,
    start_mask,
    suggest_arguments,
    token_mask,
)

# Default of `rows_per_pass`, the largest number of rows in a forward pass.
ROWS_PER_PASS = 4096

# Largest number of rows whose logits are in memory at once. With GPT-2's vocabulary, they take 206 MB in float32.
ROWS_PER_HEAD_CALL = 1024

# Number of tokens of the shortest context that has more than one order.
MIN_ENSEMBLE_CONTEXT = 2


@dataclass
class LogLikelihoodOutput(ModelOutput):
    """Output of `log_likelihood` and its variants. Log-likelihoods are in nats and float64.

    Args:
        log_likelihood (`torch.Tensor` of shape `(batch,)`): log p(x | order), its mean over orders, or an estimate of
            that mean. For an encoder, it can be an estimate of a lower bound on log p(x).
        token_log_likelihood (`torch.Tensor` of shape `(batch, n)`): Contribution of each token to `log_likelihood`, by
            position; 0 at tokens that were not scored. The contributions of a sequence sum to its `log_likelihood`.
        standard_error (`torch.Tensor` of shape `(batch,)`): Standard error of `log_likelihood`. It is 0 if no random
            numbers were drawn, and NaN for a single random draw, which does not show the variance.
        importance_weighted (`torch.Tensor` of shape `(batch,)`): log (1/K) sum_k p(x | order k) over the K orders. Its
            expectation is a lower bound, tighter for larger K, on the log-likelihood under the mixture of all orders.
            None if log p(x | order) is only estimated.
        num_rows (`int`): Number of rows that the model computed for all sequences together. A row is the decoder's unit
            of input (see `orders.py`). For an encoder, positions are counted.

    Examples:
        >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

        >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> output = AOGPTForAnyOrderLM(config).log_likelihood(torch.tensor([[5, 6, 7]]), num_orders=4)
        >>> perplexity = (-output.log_likelihood / 3).exp()
        >>> bool(output.importance_weighted > output.log_likelihood)
        True
    """

    log_likelihood: torch.FloatTensor | None = None
    token_log_likelihood: torch.FloatTensor | None = None
    standard_error: torch.FloatTensor | None = None
    importance_weighted: torch.FloatTensor | None = None
    num_rows: int | None = None


class AnyOrderLikelihoodMixin:
    """Mixin with log-likelihoods for models that predict tokens in any order."""

    @suggest_arguments
    @inference_method
    def log_likelihood(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor | str | None = None,
        num_orders: int = 1,
        block_length: int | None = None,
        stride: int | None = None,
        targets: torch.Tensor | None = None,
        context: torch.Tensor | None = None,
        context_orders: torch.LongTensor | str | None = None,
        ensemble_size: int = 1,
        num_ranks: int | None = None,
        attention_mask: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        rows_per_pass: int = ROWS_PER_PASS,
    ) -> LogLikelihoodOutput:
        """Compute log p(x | order) of whole sequences, or log p(x_A | x_B, order) of `targets` A given `context` B.

        With random orders, the result is the mean over them. The negative of the mean over uniformly random orders of
        whole sequences is the any-order loss (Eq. 7), which equals the masked-diffusion bound (Eq. 1) on -log p(x).
        Probabilities are normalized over the ids of text (ids below `config.num_valid_tokens`), as in `generate`.

        Tokens that are neither targets nor context are marginalized out: the model does not see them. A pass can score
        several orders of the targets, for which the rows of the context are computed only once.

        With `ensemble_size` M above 1, every p(x_i | context) is the mean over M orders of its context: the given order
        and M - 1 random permutations of the context (Eq. 4). This takes about (M - 1) n^2 / 2 rows per sequence and
        order. With `targets`, only the tokens of `context` are permuted, and not earlier targets.

        `num_ranks` R reduces the number of rows for uniformly random orders. log p(x | order) without the ensemble is
        then computed exactly. Only the ensemble gain, that is, the log-likelihood with the ensemble minus that without
        it, is estimated from R random contexts, without bias. All other tokens are predicted given such a context. This
        takes n rows for each order, and R M n rows for the contexts, which serve all orders.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Whole sequences. With `targets`, values at positions
                that are neither targets nor context are ignored.
            orders (`torch.LongTensor` of shape `(batch, n)` or `str`, *optional*): A tensor of orders,
                `"left_to_right"` or `"random"`. Defaults to `"left_to_right"`, or to `"random"` with `num_orders` above
                1, `block_length` or `stride`. With `targets`, only their relative order matters.
            num_orders (`int`, defaults to 1): Number of random orders K, drawn for each sequence, to average over.
            block_length (`int`, *optional*): Predict contiguous blocks of this length one after another, from left to
                right. `orders` applies within each block.
            stride (`int`, *optional*): Like `block_length`, but with strided blocks: first the positions 0, stride, 2
                stride, ..., then 1, stride + 1, ...
            targets (`torch.Tensor` of shape `(batch, n)`, *optional*): Nonzero or True at the positions of A. Sequences
                may have different numbers of targets. Defaults to all tokens, without context.
            context (`torch.Tensor` of shape `(batch, n)`, *optional*): Nonzero or True at the positions of B. Defaults
                to all tokens that are not targets.
            context_orders (as `orders`, defaults to `"left_to_right"`): Orders of all positions. They decide in which
                order the model reads the context.
            ensemble_size (`int`, defaults to 1): Number of orders M of each context; 1 means no ensemble.
            num_ranks (`int`, *optional*): Even number R of random contexts from which the ensemble gain is estimated.
                By default, the ensemble is computed at all ranks.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding. Padding may be anywhere.
            generator (`torch.Generator`, *optional*): Source of randomness.
            rows_per_pass (`int`): Largest number of rows in a pass, unless one sequence has more. It limits memory.

        Returns:
            [`LogLikelihoodOutput`], without gradients (`forward` gives gradients). The standard error includes the
            random choice of orders, contexts and their permutations. It is NaN with a single ensemble along a fixed
            order, and with a single random order, even with `num_ranks`: one order does not show how log p varies.

        Raises:
            ValueError: If an argument is not allowed, if `targets` and `context` overlap or do not fit `input_ids`, or
                if a result is not finite.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model, input_ids = AOGPTForAnyOrderLM(config), torch.tensor([[5, 6, 7]])
            >>> left_to_right = model.log_likelihood(input_ids)
            >>> any_order = model.log_likelihood(input_ids, num_orders=4)
            >>> any_order.token_log_likelihood.shape
            torch.Size([1, 3])
            >>> infill = model.log_likelihood(input_ids, targets=torch.tensor([[0, 1, 0]]))
            >>> infill.token_log_likelihood.ne(0).tolist()
            [[False, True, False]]
        """
        check_integer("ensemble_size", ensemble_size)
        check_needs_targets(targets, context=context, context_orders=context_orders)
        of_context = Orders("left_to_right" if context_orders is None else context_orders, argument="context_orders")
        is_context_random = of_context.is_random or ensemble_size > 1
        of_targets = resolve_orders(orders, num_orders, block_length, stride, allow_repeats=is_context_random)
        if num_ranks is not None:
            check_even("num_ranks", num_ranks)
            if ensemble_size == 1 or not of_targets.is_uniform or targets is not None:
                raise ValueError(
                    "`num_ranks` needs an ensemble over uniformly random orders of whole sequences. Remove it, or set "
                    "`ensemble_size` above 1 and `orders='random'`, without blocks and `targets`."
                )
        sets = None
        if targets is not None:
            is_target, is_context = sets = prepare_targets(self.config, input_ids, targets, context, attention_mask)
            is_start = start_mask(self.config, input_ids, attention_mask)
            unused_id = int(self.config.start_token_id == 0)  # not the start token
            input_ids = input_ids.long().masked_fill(~(is_target | is_context | is_start), unused_id)
        input_ids = prepare_input_ids(self, input_ids, attention_mask)
        scorer = RowScorer(copy_for_cpu(self), input_ids, attention_mask, rows_per_pass, generator)
        if num_ranks is None:
            return score_orders(scorer, of_targets, of_context, num_orders, ensemble_size, sets)
        single = score_orders(scorer, of_targets, of_context, num_orders)
        gain, draws = ensemble_gain_of_random_orders(scorer, ensemble_size, num_ranks)
        check_finite(gain.sum(dim=-1), self.dtype)
        return LogLikelihoodOutput(
            log_likelihood=single.log_likelihood + gain.sum(dim=-1),
            token_log_likelihood=single.token_log_likelihood + gain,
            standard_error=torch.hypot(single.standard_error, standard_error_of_pairs(draws)),
            num_rows=scorer.num_rows,
        )

    @suggest_arguments
    def trajectory_log_probs(
        self,
        sequences: torch.LongTensor,
        orders: torch.LongTensor,
        unmasking_steps: torch.LongTensor,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the log-probability of each generated token, with gradients, in one forward pass.

        The first three arguments are fields of the output of `generate(..., return_dict_in_generate=True)`. The tokens
        of a step are independent of each other, given all tokens of earlier steps. The result equals `token_logprobs`
        at temperature 1, without truncation and logits processors. It is normalized over the ids of text.

        This method cannot recognize the output of two settings of `generate`, for which the result would be different:

        * In speculative decoding, the tokens of a step depend on each other. Pass ranks as steps:
          `output.orders.argsort(dim=-1).masked_fill(output.unmasking_steps < 0, -1)`.
        * Refinement replaces tokens from which others were drawn. Generate without refinement.

        Args:
            sequences (`torch.LongTensor` of shape `(batch, n)`): Filled-in sequences.
            orders (`torch.LongTensor` of shape `(batch, n)`): Column of each rank in `sequences`. Given tokens come
                before generated tokens.
            unmasking_steps (`torch.LongTensor` of shape `(batch, n)`): Step at which each position was unmasked, by
                position; -1 for given tokens and padding. Tokens with -1 that come after all generated tokens in the
                order, such as padding after end-of-text tokens, are ignored.
            attention_mask (`torch.Tensor` of shape `(batch, n)`, *optional*): 0 at padding of the prompts. Padding may
                be anywhere. If `generate` appended tokens, the mask must be extended with 1.

        Returns:
            `torch.Tensor` of shape `(batch, n)`, by position, in nats; 0 for given tokens and padding. It is float64
            for a float64 model, and float32 otherwise. Unlike in `generate`, the model stays in training mode, in which
            LoRA may use dropout.

        Raises:
            ValueError: If the shapes differ, if steps decrease along an order, if a token is not an id of text, or if
                `attention_mask` is missing and an unused token, such as padding, is to the left of a used one.

        Examples:
            >>> from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

            >>> config = AOGPTConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
            >>> model = AOGPTForAnyOrderLM(config)
            >>> output = model.generate(max_length=8, num_steps=3, return_dict_in_generate=True)
            >>> log_probs = model.trajectory_log_probs(output.sequences, output.orders, output.unmasking_steps)
            >>> torch.allclose(log_probs.double(), output.token_logprobs, atol=1e-4)
            True
            >>> log_probs.sum().backward()
        """
        orders, steps, is_text, is_used = prepare_steps(self.config, sequences, orders, unmasking_steps, attention_mask)
        ids = prepare_input_ids(self, sequences, index_by_position(is_used, orders))
        ids, positions = index_by_rank(ids, orders), index_by_rank(token_positions(is_text), orders)
        rows, mask, ranks, is_predicted = step_rows(ids, positions, steps)
        hidden_states = self.model(**rows, attention_mask=mask).last_hidden_state
        index, ranks = is_predicted.nonzero()[:, 0], ranks[is_predicted]
        scores = token_log_probs(self, hidden_states[is_predicted], ids[index, ranks])
        log_probs = torch.zeros_like(ids, dtype=scores.dtype).index_put((index, orders[index, ranks]), scores)
        return log_probs.to(torch.promote_types(self.dtype, torch.float32))


# -------------------------------------------------------------------------------------------------- orders and branches


def resolve_orders(
    orders: torch.LongTensor | str | None,
    num_orders: int,
    block_length: int | None,
    stride: int | None,
    allow_repeats: bool = False,
) -> Orders:
    """Return the orders over which a likelihood is averaged. See `log_likelihood` for the arguments.

    With `allow_repeats`, `num_orders` may be above 1 for an order that is always the same.
    """
    check_integer("num_orders", num_orders)
    if orders is None:
        orders = "left_to_right" if num_orders == 1 and block_length is None and stride is None else "random"
    resolved = Orders(orders, block_length, stride)
    if num_orders > 1 and not resolved.is_random and not allow_repeats:
        raise ValueError(
            f"`num_orders` ({num_orders}) averages over random orders, but `orders` is always the same. Set "
            "`orders='random'`, or remove `num_orders`."
        )
    return resolved


def score_orders(
    scorer: "RowScorer",
    of_targets: Orders,
    of_context: Orders,
    num_orders: int,
    ensemble_size: int = 1,
    sets: tuple[torch.BoolTensor, torch.BoolTensor] | None = None,
) -> LogLikelihoodOutput:
    """Return the mean over orders of log p of targets given context. `sets` are the masks (batch, n) of the two.

    Without `sets`, all tokens are targets, and an ensemble for a token permutes all tokens before it.
    """
    is_target, is_context = (scorer.is_token, torch.zeros_like(scorer.is_token)) if sets is None else sets
    max_targets, max_context = (int(is_member.sum(dim=-1).max()) for is_member in (is_target, is_context))
    # With more target rows than context rows, most attention scores would be wasted on pairs of different orders.
    orders_per_pass = max(1, min(max_context, scorer.rows_per_pass - max_context) // max(1, max_targets))
    is_context_random = of_context.is_random or ensemble_size > 1
    if is_context_random:  # each order of the targets needs a new order of the context, to be independent
        orders_per_pass = 1
    totals, per_token = [], torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
    for first in range(0, num_orders, orders_per_pass):
        number = min(orders_per_pass, num_orders - first)
        # 1. Draw an order of the context, and orders of the targets. Each order of the targets is a branch: 0, 1, ...
        columns, branches = [], []
        draws = [(of_context, is_context), *[(of_targets, is_target)] * number]
        for branch, (orders, is_member) in enumerate(draws, CONTEXT):
            size = is_member.sum(dim=-1, keepdim=True)
            ranks = torch.arange(int(size.max()), device=size.device)
            drawn = orders.draw(scorer.is_token, scorer.generator)
            columns.append(group_orders(drawn, (~is_member).long())[:, : len(ranks)])
            branches.append(torch.where(ranks < size, branch, PADDING))
        columns, branches = torch.cat(columns, dim=1), torch.cat(branches, dim=1)
        padding_last = (branches == PADDING).long().argsort(dim=-1, stable=True)
        columns, branches = index_by_rank(columns, padding_last), index_by_rank(branches, padding_last)
        # 2. Score the targets of every branch given the context.
        scores = scorer.score(columns, branches)
        if ensemble_size > 1 and sets is None:
            scores = scores + ensemble_gain_along_orders(scorer, columns, scores, ensemble_size)
        elif ensemble_size > 1:
            scores = scorer.score_ensemble(scores, columns, branches, ensemble_size)
        # 3. Sum the scores of each branch. Average the scores of each token.
        totals += [scores.masked_fill(branches != branch, 0.0).sum(dim=-1) for branch in range(number)]
        per_token.scatter_add_(1, columns, scores / num_orders)
    return average_over_orders(scorer, per_token, totals, of_targets.is_random or is_context_random)


def prepare_steps(
    config: PreTrainedConfig,
    sequences: torch.LongTensor,
    orders: torch.LongTensor,
    unmasking_steps: torch.LongTensor,
    attention_mask: torch.Tensor | None,
) -> tuple[torch.LongTensor, torch.LongTensor, torch.BoolTensor, torch.BoolTensor]:
    """Check the arguments of `trajectory_log_probs`.

    Return the orders with padding at the end, the steps by rank, whether each token is text, by position, and whether
    each rank is used: the last generated rank, and all ranks before it. A start token that was generated is text. A
    given start token at the beginning of a sequence is not text (see `start_mask`).
    """
    check_batch("sequences", sequences)
    check_orders("orders", orders, *sequences.shape)
    check_aligned("unmasking_steps", unmasking_steps, sequences)
    check_integer_dtype("unmasking_steps", unmasking_steps)
    if attention_mask is not None:
        check_aligned("attention_mask", attention_mask, sequences)
    orders, steps = (values.to(sequences.device, torch.long) for values in (orders, unmasking_steps))
    is_start = start_mask(config, sequences, attention_mask) & (steps < 0)
    is_padding = torch.zeros_like(is_start) if attention_mask is None else attention_mask == 0
    if (is_wrong := (steps < -1) | (is_padding & (steps >= 0))).any():
        sequence, column = is_wrong.nonzero()[0].tolist()
        raise ValueError(
            f"`unmasking_steps[{sequence}, {column}]` is {steps[sequence, column]}, but must be -1 at given tokens and "
            "padding, and at least 0 elsewhere. Set it to -1, or set `attention_mask` to 1 at generated tokens."
        )
    is_text = ~(is_padding | is_start)
    orders = group_orders(orders, (~is_text).long())
    steps = index_by_rank(steps, orders)
    is_used = steps.flip(1).cummax(dim=1).values.flip(1) >= 0
    if (is_wrong := (steps[:, 1:] < steps[:, :-1]) & is_used[:, 1:]).any():
        sequence, rank = is_wrong.nonzero()[0].tolist()
        before, after = steps[sequence, rank : rank + 2].tolist()
        raise ValueError(
            f"`unmasking_steps` must not decrease along `orders`, but are {before} and {after} at the ranks {rank} and "
            f"{rank + 1} of sequence {sequence}. Given tokens (-1) must come before generated tokens. Pass `orders` "
            "(by rank) and `unmasking_steps` (by position) of the same output of `generate`."
        )
    last = orders.masked_fill(~is_used, -1).amax(dim=1, keepdim=True)  # column
    if attention_mask is None and (index_by_rank(is_text, orders) & ~is_used & (orders < last)).any():
        raise ValueError("Unused tokens (such as padding) are left of text. Pass an `attention_mask` with 0 at them.")
    return orders, steps, is_text, is_used


# --------------------------------------------------------------------------------------------------------------- scores


def token_log_probs(model: PreTrainedModel, hidden_states: torch.Tensor, ids: torch.LongTensor) -> torch.Tensor:
    """Return the float64 log-probability (rows,) of one id in each row, normalized over the ids of text.

    `hidden_states` (rows, hidden_size) are the last hidden states of the model, and `ids` has shape (rows,). The
    backward pass computes the logits again, one chunk of rows after another, so that they are never all in memory.
    """
    num_valid_tokens = model.config.num_valid_tokens

    def score(states: torch.Tensor, targets: torch.LongTensor) -> torch.Tensor:
        logits = model.apply_head(states)[:, :num_valid_tokens]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return -nn.functional.cross_entropy(logits, targets, reduction="none").double()

    num_rows = rows_per_head_call(ROWS_PER_HEAD_CALL, num_valid_tokens)
    chunks = zip(hidden_states.split(num_rows), ids.split(num_rows), strict=True)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks])
    return torch.cat([score(*chunk) for chunk in chunks])


class TokenScorer:
    """Base class of the objects that compute log-probabilities of tokens for likelihoods.

    `input_ids` (batch, n) is the result of `prepare_input_ids`. A forward pass has at most `rows_per_pass` rows, or one
    sequence if a single sequence has more.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        rows_per_pass: int,
        generator: torch.Generator | None,
    ) -> None:
        check_integer("rows_per_pass", rows_per_pass)
        check_generator(generator)
        self.model, self.input_ids, self.rows_per_pass, self.generator = model, input_ids, rows_per_pass, generator
        self.num_rows = 0  # rows computed so far, including padding
        self.is_token = token_mask(model.config, input_ids, attention_mask)
        self.positions, self.num_tokens = token_positions(self.is_token), self.is_token.sum(dim=-1)


class RowScorer(TokenScorer):
    """Scorer of a decoder, for tokens in any order (see `orders.py` for rows and branches)."""

    def score(self, columns: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        """Return the log-probability of every token of a branch given the context and the earlier tokens of the branch.

        `columns` (copies * batch, rows) contains the column of `input_ids` that each row predicts, for one or several
        copies of the batch. The float64 result is 0 at context and padding.
        """
        scores = torch.zeros(columns.shape, dtype=torch.float64, device=columns.device)
        num_rows = (branches != PADDING).sum(dim=-1)
        by_length = num_rows.argsort(descending=True)  # passes of sequences of similar length have little padding
        by_length = by_length[: int((num_rows > 0).sum())]
        lengths, start = num_rows[by_length].tolist(), 0
        while start < len(lengths):
            length = lengths[start]
            selected = by_length[start : start + max(1, self.rows_per_pass // length)]
            scores[selected, :length] = self._run(selected, columns[selected, :length], branches[selected, :length])
            start += len(selected)
        return scores

    def _run(self, selected: torch.LongTensor, columns: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        self.num_rows += columns.numel()
        sequences = (selected % len(self.input_ids))[:, None]
        ids, positions = self.input_ids[sequences, columns], self.positions[sequences, columns]
        hidden_states = self.model.model(
            **branch_rows(ids, positions, branches),
            attention_mask=branch_mask(branches) if branches.max() > 0 else None,
        ).last_hidden_state
        is_scored = branches >= 0
        scores = torch.zeros(columns.shape, dtype=torch.float64, device=columns.device)
        scores[is_scored] = token_log_probs(self.model, hidden_states[is_scored], ids[is_scored])
        return scores

    def score_permutations(
        self, columns: torch.LongTensor, branches: torch.LongTensor, num_permutations: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log(mean of p) and the mean of log p over random permutations of the context; 0 outside branches.

        `columns` and `branches` are as in [`score`], for one copy of the batch.
        """
        num_context = (branches == CONTEXT).sum(dim=-1)
        copies, parts = max(1, self.rows_per_pass // max(1, columns.numel())), []
        for start in range(0, num_permutations, copies):
            number = min(copies, num_permutations - start)
            permuted = [permute_context(columns, num_context, self.generator) for _ in range(number)]
            parts.append(self.score(torch.cat(permuted), branches.repeat(number, 1)).view(number, *columns.shape))
        scores = torch.cat(parts)
        log_mean = (scores.logsumexp(dim=0) - math.log(num_permutations)).masked_fill(branches < 0, 0.0)
        return log_mean, scores.mean(dim=0)

    def score_ensemble(
        self, scores: torch.Tensor, columns: torch.LongTensor, branches: torch.LongTensor, ensemble_size: int
    ) -> torch.Tensor:
        """Return log p_ens (batch, rows) over the current order (with `scores`) and `ensemble_size` - 1 others."""
        others, _ = self.score_permutations(columns, branches, ensemble_size - 1)
        ensemble = torch.logaddexp(scores, others + math.log(ensemble_size - 1)) - math.log(ensemble_size)
        return ensemble.masked_fill(branches < 0, 0.0)


# ---------------------------------------------------------------------------------------- ensembles of context orders


def permute_context(
    order: torch.LongTensor, num_context: torch.LongTensor, generator: torch.Generator | None
) -> torch.LongTensor:
    """Permute the first `num_context` (batch,) entries of each order (batch, rows) at random, and keep the rest."""
    ranks = torch.arange(order.shape[1], device=order.device).double()
    keys = draw_uniform(*order.shape, generator=generator, device=order.device)
    return index_by_rank(order, torch.where(ranks < num_context[:, None], keys, 1 + ranks).argsort(dim=-1))


def draw_stratified(
    num_draws: int, batch_size: int, generator: torch.Generator | None, device: torch.device | str | None
) -> torch.Tensor:
    """Draw float64 numbers (num_draws, batch) from [0, 1): two in each of num_draws / 2 equal intervals (strata)."""
    draws = draw_uniform(num_draws, batch_size, generator=generator, device=device)
    strata = torch.arange(num_draws, device=device) // 2
    return (strata[:, None] + draws) / (num_draws // 2)


def ensemble_gain_along_orders(
    scorer: RowScorer, orders: torch.LongTensor, scores: torch.Tensor, ensemble_size: int
) -> torch.Tensor:
    """Compute the ensemble gain (batch, n) at all ranks of `orders`, by rank.

    `scores` (batch, n) are the log-probabilities of the tokens under these orders, by rank.
    """
    num_tokens, gain = scorer.num_tokens, torch.zeros_like(scores)
    for rank in range(MIN_ENSEMBLE_CONTEXT, int(num_tokens.max())):
        num_context = torch.full_like(num_tokens, rank)
        branches = chain(num_context, torch.where(rank < num_tokens, rank + 1, 0), orders.shape[1])
        current = scores.masked_fill(branches < 0, 0.0)
        gain += scorer.score_ensemble(current, orders, branches, ensemble_size) - current
    return gain


def ensemble_gain_of_random_orders(
    scorer: RowScorer, ensemble_size: int, num_draws: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Estimate the mean ensemble gain over all orders without bias, from random contexts as in Eq. 2.

    For each of M random permutations of a random context, the other tokens are predicted in parallel. Any of these
    permutations could be the current order, so log p is averaged over all of them. Only the gain is estimated, because
    log p itself varies much more between tokens.

    Returns:
        The gain (batch, n) by position, and an estimate (batch,) of its sum from each draw alone.
    """
    num_tokens, (batch_size, length) = scorer.num_tokens, scorer.input_ids.shape
    num_gaining = (num_tokens - MIN_ENSEMBLE_CONTEXT).clamp(min=0)
    gain, draws = torch.zeros(batch_size, length, dtype=torch.float64, device=num_tokens.device), []
    for uniform in draw_stratified(num_draws, batch_size, scorer.generator, num_tokens.device):
        num_context = MIN_ENSEMBLE_CONTEXT + (uniform * num_gaining).floor().long()
        orders = random_orders(batch_size, length, generator=scorer.generator, device=num_tokens.device)
        orders = group_orders(orders, (~scorer.is_token).long())
        branches = parallel_queries(num_context, torch.where(num_gaining > 0, num_tokens, 0), length)
        ensemble, single = scorer.score_permutations(orders, branches, ensemble_size)
        weights = num_gaining.double() / (num_tokens - num_context).clamp(min=1)
        gain_of_draw = (ensemble - single) * weights[:, None]
        gain += index_by_position(gain_of_draw, orders) / num_draws
        draws.append(gain_of_draw.sum(dim=-1))
    return gain, draws


# ----------------------------------------------------------------------------------------------------------- results


def average_over_orders(
    scorer: TokenScorer, per_token: torch.Tensor, totals: list[torch.Tensor], is_random: bool
) -> LogLikelihoodOutput:
    """Return the output of a likelihood that is the mean over orders.

    `totals` are the log-likelihoods (batch,) of each order. `is_random` is True if the totals depend on random numbers.
    """
    log_likelihood, totals = per_token.sum(dim=-1), torch.stack(totals)
    check_finite(log_likelihood, scorer.model.dtype)
    error = torch.full_like(log_likelihood, torch.nan if is_random else 0.0)
    return LogLikelihoodOutput(
        log_likelihood=log_likelihood,
        token_log_likelihood=per_token,
        standard_error=totals.std(dim=0) / len(totals) ** 0.5 if is_random and len(totals) > 1 else error,
        importance_weighted=totals.logsumexp(dim=0) - math.log(len(totals)),
        num_rows=scorer.num_rows,
    )


def standard_error_of_pairs(draws: list[torch.Tensor]) -> torch.Tensor:
    """Return the standard error (batch,) of the mean of stratified draws, each (batch,).

    Draws 0 and 1 are from one stratum, draws 2 and 3 from the next, and so on. For each pair, the square of half the
    difference is an unbiased estimate of the variance of the pair's mean.
    """
    differences = torch.stack(draws[0::2]) - torch.stack(draws[1::2])
    return differences.square().sum(dim=0).sqrt() / len(draws)
