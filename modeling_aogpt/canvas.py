# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What generation works on, whatever the architecture: sequences in order, of which the first ranks are revealed."""

import torch
from transformers import PreTrainedModel

from .devices import to_device
from .linear import in_fast_dtype
from .orders import group_order, in_order, in_place, token_positions

# Asked hidden states (queries, hidden_size), and the (sequence, rank) of each.
Where = tuple[torch.Tensor, torch.Tensor]
Answer = tuple[torch.Tensor, Where]

IN_ORDER = ("ids", "orders", "positions", "blocks", "reveal_steps", "token_logprobs")


class Canvas:
    """
    The sequences that are being generated, in order: what is revealed, what is hidden, padding.

    An architecture adds `query`; all that generation does to a sequence is to query hidden ranks, given all that is
    revealed, and to commit tokens to them.

    Attributes:
        ids, positions (`torch.LongTensor` of shape `(batch, n)`): Tokens and their positions, in order. What stands in
            `ids` at a hidden rank means nothing.
        orders (`torch.LongTensor` of shape `(batch, n)`): Where each rank lies.
        blocks (`torch.LongTensor` of shape `(batch, n)`): In order; blocks are revealed one after the other.
        reveal_steps, token_logprobs (`torch.Tensor` of shape `(batch, n)`): Of committed tokens, in order; -1 and 0.
        num_context (`torch.LongTensor` of shape `(batch,)`, on the CPU): Revealed ranks, the first ones.
        num_given, num_tokens (`torch.LongTensor` of shape `(batch,)`, on the CPU): Ranks that were given, the first
            ones, and all but padding.
        ends (`torch.LongTensor` of shape `(batch,)`, on the CPU): The rank up to which each sequence is generated:
            `num_tokens`, or less behind an end-of-text, where `ids` are final.
        num_forward_passes, num_rows (`int`): Of the model, so far.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ids: torch.LongTensor,
        orders: torch.LongTensor,
        blocks: torch.LongTensor,
        is_padding: torch.BoolTensor,
    ) -> None:
        """Ids, with masks where they are hidden, blocks and padding (batch, n) in place; padding is hidden from all."""
        self.model = in_fast_dtype(model)
        is_hidden = ids == model.config.mask_token_id
        self.orders = group_order(orders, torch.where(is_padding, 2, is_hidden.long()))
        self.ids = in_order(ids, self.orders)
        self.positions = in_order(token_positions(~is_padding), self.orders)
        self.blocks = in_order(blocks, self.orders)
        self.reveal_steps = torch.full_like(ids, -1)
        self.token_logprobs = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        self.num_context = (~is_hidden & ~is_padding).sum(dim=-1).cpu()
        self.num_given = self.num_context.clone()
        self.num_tokens = (~is_padding).sum(dim=-1).cpu()
        self.ends = self.num_tokens.clone()
        self.num_forward_passes = self.num_rows = 0

    @property
    def num_hidden(self) -> torch.LongTensor:
        """Ranks of each sequence that are still to be revealed, (batch,) on the CPU."""
        return self.ends - self.num_context

    def query(self, num_queries: torch.LongTensor) -> Answer:
        """
        The last hidden states (queries, hidden_size) for the next `num_queries` (batch,) ranks of each sequence, one
        sequence after another, and the (sequence, rank) of each.
        """
        raise NotImplementedError

    def logits_of(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits (queries, vocab); ids that are no text have none."""
        logits = self.model.apply_head(hidden_states)
        logits[:, self.model.config.num_valid_tokens :] = float("-inf")
        return logits

    def commit(
        self,
        tokens: torch.LongTensor,
        where: Where,
        num_revealed: torch.LongTensor,
        token_logprobs: torch.Tensor,
        step: int,
    ) -> None:
        """
        Reveals tokens (queries,) at (sequence, rank), the next `num_revealed` (batch,) ranks of their sequences.

        These are counted on the CPU by the caller, who mostly knows: nothing here waits for an accelerator.
        """
        self.ids[where] = tokens
        self.token_logprobs[where] = token_logprobs
        self.reveal_steps[where] = step
        self.num_context += num_revealed

    def reorder(self, ranks: torch.LongTensor) -> None:
        """Puts at rank k what was at rank `ranks[b, k]`, (batch, n)."""
        for name in IN_ORDER:
            setattr(self, name, getattr(self, name).gather(1, ranks))

    def hide(self, is_hidden: torch.BoolTensor, orders: torch.LongTensor) -> None:
        """Hides generated tokens again, (batch, n) in place, to be revealed as their order in `orders` has it."""
        is_moved, priority = in_order(is_hidden, self.orders), in_order(orders.argsort(dim=-1), self.orders)
        ranks = torch.arange(is_moved.shape[1], device=is_moved.device)
        is_padding = ranks >= to_device(self.num_tokens, ranks.device)[:, None]
        key = torch.where(is_moved, len(ranks) + priority, ranks).masked_fill(is_padding, 3 * len(ranks))
        self.num_context -= is_moved.sum(dim=-1).cpu()
        self.reorder(key.argsort(dim=-1, stable=True))

    def end(self) -> None:
        """Says that all is generated."""

    def ranks_between(self, first: torch.LongTensor, end: torch.LongTensor) -> torch.BoolTensor:
        """Which ranks (batch, n) lie from `first` to before `end`, both (batch,)."""
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        first, end = (to_device(counts, ranks.device)[:, None] for counts in (first, end))
        return (first <= ranks) & (ranks < end)

    def is_hidden(self) -> torch.BoolTensor:
        """What is still to be revealed, (batch, n) in place."""
        return in_place(self.ranks_between(self.num_context, self.ends), self.orders)

    def sequences(self) -> torch.LongTensor:
        """The sequences (batch, n) in place, with masks where they are hidden."""
        return in_place(self.ids, self.orders).masked_fill(self.is_hidden(), self.model.config.mask_token_id)

    def seen_by(self, where: Where, num_known: torch.LongTensor | None = None) -> torch.LongTensor:
        """
        The sequence (queries, n) that each query sees, in place: `num_known` (queries,) ranks, or all revealed ones.
        Elsewhere, at padding too, are masks.
        """
        sequences, _ = where
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        num_known = to_device(self.num_context, ranks.device)[sequences] if num_known is None else num_known
        ids = self.ids[sequences].masked_fill(ranks >= num_known[:, None], self.model.config.mask_token_id)
        return in_place(ids, self.orders[sequences])


def first_columns(counts: torch.LongTensor, device: torch.device) -> Where:
    """The rows and columns of the first `counts` (batch,) columns of each row, found on the CPU, where counts are."""
    is_first = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    rows, columns = is_first.nonzero(as_tuple=True)
    return to_device(rows, device), to_device(columns, device)
