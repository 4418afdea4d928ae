# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows, the decoder's unit of input, and which rows see which."""

import torch


def rows_of(
    ids: torch.LongTensor,
    positions: torch.LongTensor,
    num_context: torch.LongTensor | None = None,
    ranks: torch.LongTensor | None = None,
) -> dict[str, torch.Tensor]:
    """
    The rows of some ranks of an order, as keyword arguments of `AOGPTModel`.

    The row of rank r predicts the position of rank r and carries the token revealed last before it: that of rank r - 1,
    or, in a row that queries beyond the known context, the last known token. With nothing known it is the start row.

    Args:
        ids (`torch.LongTensor` of shape `(batch, n)`): Tokens, in order.
        positions (`torch.LongTensor` of shape `(batch, n)`): Positions, in order.
        num_context (`torch.LongTensor` of shape `(batch,)`, *optional*): How many tokens are known in each sequence,
            the first of its order; all of them if not given.
        ranks (`torch.LongTensor` of shape `(batch, rows)`, *optional*): Ranks to predict; all n if not given.
    """
    if ranks is None:
        ranks = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    token_ranks = ranks - 1 if num_context is None else torch.minimum(ranks, num_context[:, None]) - 1
    is_start, token_ranks = token_ranks < 0, token_ranks.clamp(min=0)
    return {
        "input_ids": ids.gather(1, token_ranks).masked_fill(is_start, 0),
        "positions": positions.gather(1, token_ranks).masked_fill(is_start, -1),
        "target_positions": positions.gather(1, ranks),
    }


def query_mask(ranks: torch.LongTensor, num_context: torch.LongTensor, num_slots: int) -> torch.BoolTensor:
    """
    Which slots a row sees, (batch, 1, rows, slots), when the row of rank r lies in slot r: itself and, of the rows
    before it, those within the known context. So rows within it form a causal chain, and rows beyond it query in
    parallel.

    Args:
        ranks (`torch.LongTensor` of shape `(batch, rows)`): Rank of each row.
        num_context (`torch.LongTensor` of shape `(batch,)`): How many tokens are known in each sequence.
        num_slots (`int`): Slots that are looked at.
    """
    slots = torch.arange(num_slots, device=ranks.device)
    seen = torch.minimum(ranks, num_context[:, None])
    return ((slots < seen[..., None]) | (slots == ranks[..., None]))[:, None]
