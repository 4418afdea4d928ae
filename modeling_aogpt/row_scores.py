# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Log-probabilities of tokens, from no more rows than they need.

What is to be scored is a context and branches: chains of tokens that follow it, independent of each other, so that its
rows are computed once for all of them. A whole sequence is one branch without a context; what a masked diffusion model
is asked, all hidden tokens given the others, is a branch of one token for each.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel

from .likelihood_output import check_count
from .linear import in_fast_dtype
from .orders import token_positions, tokens_of

# Rows of one forward pass, and rows whose logits are held at once: 1024 of a table of 50304 are 206 MB in float32.
ROWS_PER_PASS = 4096
ROWS_PER_HEAD_CALL = 1024

# What stands in `branches` for rows of the context, and behind the last row of a sequence; branches count from 0.
CONTEXT, PADDING = -1, -2


def token_scores(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    ids: torch.LongTensor,
    num_ids: int | None = None,
) -> torch.Tensor:
    """log p of one id for each of the hidden states (rows, hidden_size), over the first `num_ids` ids; float64."""
    scores = []
    for states, targets in zip(hidden_states.split(ROWS_PER_HEAD_CALL), ids.split(ROWS_PER_HEAD_CALL), strict=True):
        logits = head(states)[:, :num_ids]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores.append(-nn.functional.cross_entropy(logits, targets, reduction="none").double())
    return torch.cat(scores)


class RowScorer:
    """
    Scores tokens of some sequences under any orders.

    Attributes:
        is_token (`torch.BoolTensor` of shape `(batch, n)`): False at padding.
        num_tokens (`torch.LongTensor` of shape `(batch,)`): Tokens of each sequence.
        num_rows (`int`): Rows computed so far, those counted that only fill up a batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        attention_mask: torch.Tensor | None,
        rows_per_pass: int,
    ) -> None:
        check_count("rows_per_pass", rows_per_pass)
        self.model, self.rows_per_pass, self.num_rows = in_fast_dtype(model), rows_per_pass, 0
        self.input_ids = model.checked_ids(input_ids, attention_mask)
        self.is_token = tokens_of(input_ids, attention_mask)
        self.num_tokens = self.is_token.sum(dim=-1)
        self.positions = token_positions(self.is_token)

    def copies_per_pass(self, length: int) -> int:
        """How many copies of the batch, of so many rows per sequence, make a full pass."""
        return max(1, self.rows_per_pass // max(1, len(self.input_ids) * length))

    def score(self, order: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        """
        Args:
            order (`torch.LongTensor` of shape `(copies * batch, rows)`): The position, in place, that each row
                predicts: those of the context, then of one branch after another, then anything. The batch may be there
                several times.
            branches (`torch.LongTensor` of the same shape): `CONTEXT`, the number of the branch, or `PADDING`.

        Returns:
            `torch.Tensor` of the same shape, float64: log p of each token of a branch given the context and what comes
            before it in the branch; 0 elsewhere.
        """
        scores = torch.zeros(order.shape, dtype=torch.float64, device=order.device)
        num_rows = (branches != PADDING).sum(dim=-1)
        by_length = num_rows.argsort(descending=True)  # sequences of like length share a pass
        by_length = by_length[: int((num_rows > 0).sum())]
        lengths, start = num_rows[by_length].tolist(), 0
        while start < len(lengths):
            length = lengths[start]
            chosen = by_length[start : start + max(1, self.rows_per_pass // length)]
            scores[chosen, :length] = self._run(chosen, order[chosen, :length], branches[chosen, :length])
            start += len(chosen)
        return scores

    def _run(self, chosen: torch.LongTensor, order: torch.LongTensor, branches: torch.LongTensor) -> torch.Tensor:
        self.num_rows += order.numel()
        ids, positions = (values[chosen % len(self.input_ids)] for values in (self.input_ids, self.positions))
        carried = previous_rows(branches)
        is_start, carried = carried < 0, order.gather(1, carried.clamp(min=0))
        hidden_states = self.model.model(
            input_ids=ids.gather(1, carried).masked_fill(is_start, 0),
            positions=positions.gather(1, carried).masked_fill(is_start, -1),
            target_positions=positions.gather(1, order),
            attention_mask=visible_rows(branches),
        ).last_hidden_state
        is_scored = branches >= 0
        scores = torch.zeros(order.shape, dtype=torch.float64, device=order.device)
        scores[is_scored] = token_scores(
            self.model.apply_head, hidden_states[is_scored], ids.gather(1, order)[is_scored]
        )
        return scores


def previous_rows(branches: torch.LongTensor) -> torch.LongTensor:
    """The row that predicts the token which each row carries, (batch, rows); -1 for the start row."""
    rows = torch.arange(branches.shape[1], device=branches.device)
    goes_on = branches == branches.roll(1, dims=1)  # at the first row either answer gives -1
    num_context = (branches == CONTEXT).sum(dim=-1, keepdim=True)
    return torch.where(goes_on | (branches == CONTEXT), rows, num_context) - 1


def visible_rows(branches: torch.LongTensor) -> torch.BoolTensor | None:
    """Which rows a row sees, (batch, 1, rows, rows): the context's and its branch's up to itself; None is causal."""
    if branches.max() <= 0:
        return None
    rows = torch.arange(branches.shape[1], device=branches.device)
    seen, seeing = branches[:, None, :], branches[:, :, None]
    return (((seen == CONTEXT) | (seen == seeing)) & (rows <= rows[:, None]))[:, None]


def one_branch(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Branches (batch, rows): the first `num_context` (batch,) ranks are given, those up to `ends` (batch,) a chain."""
    ranks = torch.arange(num_rows, device=ends.device)
    chain = torch.where(ranks < num_context[:, None], CONTEXT, 0)
    return chain.masked_fill(ranks >= ends[:, None], PADDING)


def parallel_branches(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """As `one_branch`, but every rank that is not given is a branch of its own."""
    ranks = torch.arange(num_rows, device=ends.device)
    queries = torch.where(ranks < num_context[:, None], CONTEXT, ranks)
    return queries.masked_fill(ranks >= ends[:, None], PADDING)
