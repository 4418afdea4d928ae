# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Rows, the decoder's unit of input, and the attention masks between rows.

A row consists of a token, the position of this token, and the target position, which the row predicts. Training,
scoring, prefill and decoding run the same forward pass over rows, and differ only in the attention mask. The row that
predicts rank r usually contains the token of rank r - 1. The first row, the start row, contains a learned start
embedding instead of a token. Its position is -1.

The rows of a sequence may form several branches. A branch is a chain of rows that continues a shared context. Its rows
attend to the context and to earlier rows of the same branch, but not to other branches. In training, the whole sequence
is one branch without a context. Parallel queries predict several masked positions in one pass. Each of them is a branch
of one row.

The tensor `branches` (batch, rows) holds the branch of each row. Rows of the shared context come first, and have the
value `CONTEXT`. All rows of a branch have the same value, an integer of at least 0. Rows that are not used have the
value `PADDING`.
"""

import torch

CONTEXT, PADDING = -1, -2


def make_rows(
    ids: torch.LongTensor,
    positions: torch.LongTensor,
    carried: torch.LongTensor,
    targets: torch.LongTensor,
) -> dict[str, torch.LongTensor]:
    """
    Return rows as keyword arguments of `AOGPTModel.forward`.

    `ids` and `positions` (batch, n) are tokens and their positions. `carried` and `targets` (batch, rows) are indices
    into the n columns of `ids` and `positions`. For each row, `carried` is the index of its token, or -1 for a start
    row, and `targets` is the index of its target position.
    """
    is_start, token = carried < 0, carried.clamp(min=0)
    return {
        "input_ids": ids.gather(1, token).masked_fill(is_start, 0),
        "positions": positions.gather(1, token).masked_fill(is_start, -1),
        "target_positions": positions.gather(1, targets),
    }


def query_rows(
    ids: torch.LongTensor,
    positions: torch.LongTensor,
    ranks: torch.LongTensor,
    num_context: torch.LongTensor,
) -> dict[str, torch.LongTensor]:
    """
    Return the rows that predict `ranks` given a context, in the format of [`make_rows`].

    A row that predicts a rank of the context, or the first rank after the context, contains the token of the rank
    before. Rows that predict later ranks are parallel queries, and all contain the last token of the context.

    `ids` and `positions` (batch, n) are indexed by rank. `ranks` (batch, rows) are the ranks to predict, and
    `num_context` (batch,) is the number of ranks in the context.
    """
    carried = torch.minimum(ranks, num_context[:, None]) - 1
    return make_rows(ids, positions, carried, ranks)


def query_mask(ranks: torch.LongTensor, num_context: torch.LongTensor, num_slots: int) -> torch.BoolTensor:
    """
    Return the attention mask (batch, 1, rows, slots) of [`query_rows`] for a cache with `num_slots` slots.

    Slot r of the cache holds the row that predicts rank r. A row attends to itself and to earlier rows of the context.
    Attention within the context is therefore causal, and rows after the context do not attend to each other.
    """
    slots = torch.arange(num_slots, device=ranks.device)
    num_visible = torch.minimum(ranks, num_context[:, None])
    return ((slots < num_visible[..., None]) | (slots == ranks[..., None]))[:, None]


def branch_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, branches: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """
    Return one row for each rank (column of `branches`), in the format of [`make_rows`].

    A branch is a chain of ranks that are predicted one after another. Its first row contains the last token of the
    context. Each other row contains the token of the previous rank of the branch.
    """
    rows = torch.arange(branches.shape[1], device=branches.device)
    is_context = branches == CONTEXT
    continues = branches == branches.roll(1, dims=1)  # `roll` wraps around, but the first row is a start row either way
    num_context = is_context.sum(dim=-1, keepdim=True)
    carried = torch.where(continues | is_context, rows, num_context) - 1
    return make_rows(ids, positions, carried, rows.expand_as(branches))


def branch_mask(branches: torch.LongTensor) -> torch.BoolTensor | None:
    """
    Return the attention mask (batch, 1, rows, rows) of [`branch_rows`], or None if attention is causal.

    A row attends to itself, to earlier rows of the context, and to earlier rows of its own branch.
    """
    if branches.max() <= 0:
        return None
    rows = torch.arange(branches.shape[1], device=branches.device)
    columns, branches = branches[:, None, :], branches[:, :, None]
    return (((columns == CONTEXT) | (columns == branches)) & (rows <= rows[:, None]))[:, None]


def chain(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """
    Return a tensor `branches` (batch, rows) with a context, one branch, and padding.

    `num_context` and `ends` have shape (batch,). Ranks below `num_context` are `CONTEXT`, ranks from `num_context` to
    `ends` - 1 form branch 0, and ranks from `ends` on are `PADDING`.
    """
    ranks = torch.arange(num_rows, device=ends.device)
    return torch.where(ranks < num_context[:, None], CONTEXT, 0).masked_fill(ranks >= ends[:, None], PADDING)


def parallel_queries(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Return `branches` as [`chain`] does, but with one branch for each rank from `num_context` to `ends` - 1."""
    branches = chain(num_context, ends, num_rows)
    return torch.where(branches < 0, branches, torch.arange(num_rows, device=ends.device))
