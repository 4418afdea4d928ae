# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The ensemble over context orders (Eq. 4): p_ens(x_i | context) is the mean of p(x_i | permuted context) over M
permutations of the context, the one at hand always among them.

What the ensemble adds to the log-likelihood of an order, its gain, is log p_ens - log p summed over ranks. Estimating
the gain by draws of ranks, and not log p_ens itself, leaves the spread of log p among tokens out of the estimate: the
log-likelihood of the order itself costs only n rows and is computed in full. Contexts of less than two tokens have
one order, and gain nothing.
"""

import math

import torch

from .devices import draw_uniform
from .diffusion_bound import stratified
from .orders import group_order, in_order, in_place, random_orders
from .row_scores import RowScorer, one_branch, parallel_branches

# The shortest context with more than one order.
SHORTEST_CONTEXT = 2


def permute_context(
    order: torch.LongTensor, num_context: torch.LongTensor, generator: torch.Generator | None
) -> torch.LongTensor:
    """Uniform permutations of the first `num_context` (batch,) entries of each row (batch, rows); the rest stays."""
    ranks = torch.arange(order.shape[1], device=order.device).double()
    keys = draw_uniform(*order.shape, generator=generator, device=order.device)
    return in_order(order, torch.where(ranks < num_context[:, None], keys, 1 + ranks).argsort(dim=-1))


def permuted_scores(
    scorer: RowScorer,
    order: torch.LongTensor,
    num_context: torch.LongTensor,
    branches: torch.LongTensor,
    num_context_orders: int,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Over `num_context_orders` permutations of the context: log of the mean of p, and mean of log p, both (batch, rows).
    Arguments as in [`RowScorer.score`], of one copy of the batch.
    """
    log_sum = torch.full(order.shape, -torch.inf, dtype=torch.float64, device=order.device)
    sum_of_logs = torch.zeros_like(log_sum)
    copies = scorer.copies_per_pass(order.shape[1])
    for start in range(0, num_context_orders, copies):
        number = min(copies, num_context_orders - start)
        permuted = [permute_context(order, num_context, generator) for _ in range(number)]
        scores = scorer.score(torch.cat(permuted), branches.repeat(number, 1)).view(number, *order.shape)
        log_sum = torch.logaddexp(log_sum, scores.logsumexp(dim=0))
        sum_of_logs += scores.sum(dim=0)
    return log_sum - math.log(num_context_orders), sum_of_logs / num_context_orders


def ensemble_scores(
    scores: torch.Tensor,
    scorer: RowScorer,
    order: torch.LongTensor,
    num_context: torch.LongTensor,
    branches: torch.LongTensor,
    num_context_orders: int,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """log p_ens (batch, rows) of M context orders: that at hand, whose `scores` are known, and M - 1 permutations."""
    if num_context_orders == 1:
        return scores
    number = num_context_orders - 1
    others, _ = permuted_scores(scorer, order, num_context, branches, number, generator)
    return torch.logaddexp(scores, others + math.log(number)) - math.log(num_context_orders)


def gains_along_orders(
    scorer: RowScorer,
    orders: torch.LongTensor,
    scores: torch.Tensor,
    num_context_orders: int,
    num_ranks: int | None,
    generator: torch.Generator | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The gains at the ranks of given orders: at all of them, or unbiased estimates from `num_ranks` stratified random
    ones. A rank r costs (M - 1) (r + 1) rows.

    Args:
        orders (`torch.LongTensor` of shape `(batch, n)`): Padding last.
        scores (`torch.Tensor` of shape `(batch, n)`): log p of each token under these orders, in order.

    Returns:
        Gains (batch, n) in order, and the draws (draws, batch) whose mean is their sum over ranks.
    """
    length, num_tokens = orders.shape[1], scorer.num_tokens
    num_gaining = (num_tokens - SHORTEST_CONTEXT).clamp(min=0)
    if num_ranks is None:
        every = range(SHORTEST_CONTEXT, int(num_tokens.max()))
        ranks, weights = [torch.full_like(num_tokens, rank) for rank in every], torch.ones_like(num_tokens).double()
    else:
        ranks = draw_contexts(num_gaining, num_ranks, generator)
        weights = num_gaining.double() / num_ranks
    gains, draws = torch.zeros_like(scores), []
    for rank in ranks:
        is_there = rank < num_tokens
        branches = one_branch(rank, torch.where(is_there, rank + 1, 0), length)
        here = scores.masked_fill(branches < 0, 0.0)
        ensemble = ensemble_scores(here, scorer, orders, rank, branches, num_context_orders, generator)
        gain = (ensemble - here).masked_fill(branches < 0, 0.0) * weights[:, None]
        gains += gain
        draws.append(gain.sum(dim=-1) * len(ranks))
    return gains, torch.stack(draws) if draws else scores.new_zeros(2, len(orders))


def gains_of_uniform_orders(
    scorer: RowScorer, num_context_orders: int, num_ranks: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Unbiased estimates of the mean gain over all orders, in the form of masked diffusion (Eq. 2): a context of random
    size l, and all n - l other tokens queried in the same pass, for every one of M permutations of the context.

    All M being alike, log p is the mean of M. A draw costs M n rows and gives n - l gains.

    Returns:
        Gains (batch, n) in place, and the draws (num_ranks, batch) whose mean is their sum.
    """
    num_tokens, (batch_size, length) = scorer.num_tokens, scorer.input_ids.shape
    num_gaining = (num_tokens - SHORTEST_CONTEXT).clamp(min=0)
    gains, draws = torch.zeros(batch_size, length, dtype=torch.float64, device=num_tokens.device), []
    for num_context in draw_contexts(num_gaining, num_ranks, generator):
        orders = random_orders(batch_size, length, generator=generator, device=num_tokens.device)
        orders = group_order(orders, (~scorer.is_token).long())
        branches = parallel_branches(num_context, torch.where(num_gaining > 0, num_tokens, 0), length)
        ensemble, single = permuted_scores(scorer, orders, num_context, branches, num_context_orders, generator)
        weights = num_gaining.double() / (num_tokens - num_context).clamp(min=1)
        gain = (ensemble - single) * weights[:, None]
        gains += in_place(gain, orders) / num_ranks
        draws.append(gain.sum(dim=-1))
    return gains, torch.stack(draws)


def draw_contexts(
    num_gaining: torch.LongTensor, num_ranks: int, generator: torch.Generator | None
) -> list[torch.LongTensor]:
    """Stratified sizes (batch,) of contexts, each uniform over the `num_gaining` (batch,) from the shortest on."""
    draws = stratified(num_ranks, len(num_gaining), generator, num_gaining.device)
    return list(SHORTEST_CONTEXT + (draws * num_gaining).floor().long())
