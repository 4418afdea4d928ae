# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Rows, the decoder's unit of input, and the attention masks between them.

A row holds a token, the position of that token and the target position that the row predicts. Training, scoring,
prefill and decoding all run rows and differ only in the mask. The row that predicts rank r usually carries the token
of rank r - 1; the first row carries no token but a learned start embedding, whose position is -1.

`branches` (batch, rows) describes a batch of rows: first the rows of a shared context, marked `CONTEXT`, then the rows
of one branch after another, numbered from 0. A branch is a chain of tokens that continues the context and does not
attend to other branches. One branch without a context is a whole sequence; branches of one row each are parallel
queries.
"""

import torch

CONTEXT, PADDING = -1, -2


def make_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, carried: torch.LongTensor, targets: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """
    Return rows as keyword arguments of `AOGPTModel.forward`.

    Args:
        ids (`torch.LongTensor` of shape `(batch, n)`): Tokens.
        positions (`torch.LongTensor` of shape `(batch, n)`): Positions, aligned with `ids`.
        carried (`torch.LongTensor` of shape `(batch, rows)`): Column of the token that each row carries, -1 for a start
            row.
        targets (`torch.LongTensor` of shape `(batch, rows)`): Column of the position that each row predicts.
    """
    is_start, carried = carried < 0, carried.clamp(min=0)
    return {
        "input_ids": ids.gather(1, carried).masked_fill(is_start, 0),
        "positions": positions.gather(1, carried).masked_fill(is_start, -1),
        "target_positions": positions.gather(1, targets),
    }


def query_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, ranks: torch.LongTensor, num_context: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """
    Return the rows that predict `ranks` given a context, see [`make_rows`].

    A rank within the context, and the first one after it, carries the token of the rank before. Later ranks carry the
    last token of the context: they are parallel queries.

    Args:
        ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, by rank.
        positions (`torch.LongTensor` of shape `(batch, n)`): Positions, by rank.
        ranks (`torch.LongTensor` of shape `(batch, rows)`): Ranks to predict.
        num_context (`torch.LongTensor` of shape `(batch,)`): Number of ranks in the context.
    """
    return make_rows(ids, positions, torch.minimum(ranks, num_context[:, None]) - 1, ranks)


def query_mask(ranks: torch.LongTensor, num_context: torch.LongTensor, num_slots: int) -> torch.BoolTensor:
    """
    Return the attention mask (batch, 1, rows, slots) of [`query_rows`] over a cache that holds rank r in slot r.

    A row attends to itself and to earlier slots of the context. Rows within the context thus form a causal chain, and
    rows after it do not attend to each other.
    """
    slots = torch.arange(num_slots, device=ranks.device)
    num_visible = torch.minimum(ranks, num_context[:, None])
    return ((slots < num_visible[..., None]) | (slots == ranks[..., None]))[:, None]


def branch_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, branches: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """
    Return one row for each rank of `branches`, see [`make_rows`].

    The first row of a branch carries the last token of the context; every other row carries the token of the rank
    before it.
    """
    rows = torch.arange(branches.shape[1], device=branches.device)
    is_context = branches == CONTEXT
    continues = branches == branches.roll(1, dims=1)  # of no effect in the first row, which carries no token
    num_context = is_context.sum(dim=-1, keepdim=True)
    carried = torch.where(continues | is_context, rows, num_context) - 1
    return make_rows(ids, positions, carried, rows.expand_as(branches))


def branch_mask(branches: torch.LongTensor) -> torch.BoolTensor | None:
    """
    Return the attention mask (batch, 1, rows, rows) of [`branch_rows`], or None if it is causal.

    A row attends to the context and to its own branch, up to itself.
    """
    if branches.max() <= 0:
        return None
    rows = torch.arange(branches.shape[1], device=branches.device)
    columns, branches = branches[:, None, :], branches[:, :, None]
    return (((columns == CONTEXT) | (columns == branches)) & (rows <= rows[:, None]))[:, None]


def chain(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Return branches (batch, rows): `num_context` ranks of context, then one branch up to `ends`, both (batch,)."""
    ranks = torch.arange(num_rows, device=ends.device)
    return torch.where(ranks < num_context[:, None], CONTEXT, 0).masked_fill(ranks >= ends[:, None], PADDING)


def parallel_queries(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Return branches (batch, rows): `num_context` ranks of context, then one branch per rank up to `ends`."""
    ranks = torch.arange(num_rows, device=ends.device)
    return torch.where(ranks < num_context[:, None], CONTEXT, ranks).masked_fill(ranks >= ends[:, None], PADDING)


def causal_mask(
    num_rows: int,
    num_slots: int,
    num_cached: int | torch.Tensor,
    is_token: torch.BoolTensor | None,
    device: torch.device,
) -> torch.BoolTensor:
    """
    Return the left-to-right mask (batch or 1, 1, rows, slots) of new rows after `num_cached` cached ones.

    `is_token` (batch, cached + rows), if given, is False at padding, which no row attends to.
    """
    rows = num_cached + torch.arange(num_rows, device=device)
    mask = (torch.arange(num_slots, device=device) <= rows[:, None])[None, None]
    if is_token is None:
        return mask
    is_token = torch.nn.functional.pad(is_token, (0, num_slots - is_token.shape[1]))
    return mask & is_token[:, None, None, :]


def add_start_row(mask: torch.BoolTensor) -> torch.BoolTensor:
    """Extend a mask (batch, 1, rows, slots) by a start row, to which all rows attend. It attends only to itself."""
    mask = torch.nn.functional.pad(mask, (1, 0), value=True)
    start = torch.nn.functional.pad(torch.zeros_like(mask[:, :, :1, 1:]), (1, 0), value=True)
    return torch.cat((start, mask), dim=2)
