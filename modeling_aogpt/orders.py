# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Orders of positions, rows (the decoder's units of input), and the attention masks between rows.

An order is a permutation of the positions of a sequence. `orders[b, k]` is the position of sequence b that is predicted
at rank k. Positions and ranks are counted from 0. Values of shape (batch, n) are indexed either by position, as in the
text, or by rank. `index_by_rank` and `index_by_position` convert between the two.

A row consists of a token, the position of this token, and the target position, which the row predicts. Training,
scoring, prefill and decoding run the same forward pass over rows, and differ only in the attention mask. The row that
predicts rank r usually contains the token of rank r - 1. The first row, the start row, contains a learned start
embedding instead of a token. Its position is -1.

The rows of a sequence may form several branches. A branch is a chain of rows that continues a shared context. Its rows
attend to the context and to earlier rows of the same branch, but not to other branches. In training, the whole sequence
is one branch without a context. Parallel queries predict several masked positions in one pass. Each of them is a branch
of one row.

The tensor `branches` (batch, rows) holds the branch of each row. Rows of the shared context come first, and have the
value `CONTEXT`. All rows of a branch have the same value, an integer of at least 0. Unused rows have `PADDING`.
"""

from dataclasses import dataclass

import torch

from .devices import draw_uniform
from .validation import check_choice, check_integer, check_orders

ORDER_NAMES = ("left_to_right", "random")

# Values of `branches` at rows of the context, and at rows that are not used.
CONTEXT, PADDING = -1, -2


def left_to_right_orders(batch_size: int, length: int, device: torch.device | str | None = None) -> torch.LongTensor:
    """Return the left-to-right order of every sequence, a tensor (batch, n)."""
    return torch.arange(length, device=device).expand(batch_size, length)


def random_orders(
    batch_size: int, length: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> torch.LongTensor:
    """Draw an independent, uniformly random order for each sequence, and return a tensor (batch, n).

    Examples:
        >>> random_orders(2, 5, generator=torch.Generator().manual_seed(0))
        tensor([[2, 4, 1, 3, 0],
                [1, 4, 2, 3, 0]])
    """
    # Sorting equal keys would favour lower positions, so orders would not be uniform. Keys are float64, because equal
    # keys are then rare: their probability is about n^2 / 2^54 per sequence.
    return draw_uniform(batch_size, length, generator=generator, device=device).argsort(dim=-1)


def index_by_rank(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """Index values (batch, n) by rank instead of position: `result[b, k] = values[b, orders[b, k]]`."""
    return values.gather(1, orders)


def index_by_position(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """Index values (batch, n, ...) by position instead of rank: `result[b, orders[b, k]] = values[b, k]`."""
    ranks = orders.argsort(dim=-1)
    return values.gather(1, ranks.view(*ranks.shape, *[1] * (values.dim() - 2)).expand_as(values))


def group_orders(orders: torch.LongTensor, groups: torch.Tensor) -> torch.LongTensor:
    """Move positions of lower `groups` (batch, n) to the front of each order, and keep the order in each group."""
    return index_by_rank(orders, index_by_rank(groups, orders).argsort(dim=-1, stable=True))


def token_positions(is_token: torch.BoolTensor) -> torch.LongTensor:
    """Return positions (batch, n), counted without padding. Padding has the position of the previous token, or 0."""
    return (is_token.long().cumsum(dim=-1) - 1).clamp(min=0)


@dataclass(frozen=True, eq=False)
class Orders:
    """The orders that the arguments `orders` (or `order`), `block_length` and `stride` of a method describe.

    Raises:
        ValueError: If a value is not allowed, or if `block_length` or `stride` is combined with another one of them or
            with orders that are not named.
    """

    kind: torch.LongTensor | str = "random"  # a tensor (batch, n) of orders, or a name
    # Predict contiguous blocks of this length from left to right. The named order applies within each block.
    block_length: int | None = None
    stride: int | None = None  # like `block_length`, but block i has the positions i, i + stride, i + 2 stride, ...
    argument: str = "orders"  # name of the argument that holds `kind`, for error messages
    names: tuple[str, ...] = ORDER_NAMES  # that the argument allows
    takes_tensor: bool = True  # whether the argument can be a tensor

    def __post_init__(self) -> None:
        is_given = self.takes_tensor and isinstance(self.kind, torch.Tensor)
        if not is_given:
            check_choice(self.argument, self.kind, self.names, ", a Tensor" * self.takes_tensor)
        for name, value in (("block_length", self.block_length), ("stride", self.stride)):
            if value is not None:
                check_integer(name, value)
        if self.block_length is not None and self.stride is not None:
            raise ValueError(
                f"`block_length` ({self.block_length}) and `stride` ({self.stride}) cannot be combined, because each "
                "of them cuts a sequence into blocks. Remove one of them."
            )
        if is_given and self.has_blocks:
            raise ValueError(
                f"`block_length` and `stride` cannot be combined with a tensor as `{self.argument}`. Remove them, or "
                f"set `{self.argument}='random'`."
            )

    @property
    def has_blocks(self) -> bool:
        """Return whether the sequences are cut into blocks."""
        return self.block_length is not None or self.stride is not None

    @property
    def is_left_to_right(self) -> bool:
        """Return whether all positions come from left to right."""
        return self._is_named("left_to_right") and self.stride is None

    @property
    def is_random(self) -> bool:
        """Return whether calls of [`draw`] may return different orders."""
        return self._is_named("random")

    @property
    def is_uniform(self) -> bool:
        """Return whether all orders are equally likely."""
        return self._is_named("random") and not self.has_blocks

    def _is_named(self, name: str) -> bool:
        return isinstance(self.kind, str) and self.kind == name

    def blocks(self, positions: torch.LongTensor) -> torch.LongTensor:
        """Return the index of the block of each position; 0 for all positions if there are no blocks."""
        if self.block_length is not None:
            return positions // self.block_length
        return positions % self.stride if self.stride is not None else torch.zeros_like(positions)

    def draw(self, is_token: torch.BoolTensor, generator: torch.Generator | None) -> torch.LongTensor:
        """Return orders (batch, n) with padding (`is_token` is False) at the end. Each call draws new random orders.

        For adaptive orders, return left to right. This decides between positions of equal certainty.
        """
        (batch_size, length), device = is_token.shape, is_token.device
        if self._is_named("random"):
            orders = random_orders(batch_size, length, generator=generator, device=device)
        elif isinstance(self.kind, str):
            orders = left_to_right_orders(batch_size, length, device=device)
        else:
            check_orders(self.argument, self.kind, batch_size, length)
            orders = self.kind.to(device, torch.long)
        return group_orders(orders, torch.where(is_token, self.blocks(token_positions(is_token)), length))


# ----------------------------------------------------------------------------------------------------------------- rows


def make_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, carried: torch.LongTensor, targets: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """Return rows as keyword arguments of `AOGPTModel.forward`.

    `carried` and `targets` (batch, rows) are columns of `ids` and `positions` (batch, n). `carried` is the column of
    the token of each row, or -1 for a start row. `targets` is the column of the target position.
    """
    is_start, token = carried < 0, carried.clamp(min=0)
    return {
        "input_ids": ids.gather(1, token).masked_fill(is_start, 0),
        "positions": positions.gather(1, token).masked_fill(is_start, -1),
        "target_positions": positions.gather(1, targets),
    }


def branch_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, branches: torch.LongTensor
) -> dict[str, torch.LongTensor]:
    """Return one row for each rank (column of `branches`), in the format of [`make_rows`].

    The first row of a branch contains the last token of the context. Each later row contains the token that the
    previous row predicts.
    """
    rows = torch.arange(branches.shape[1], device=branches.device)
    is_context = branches == CONTEXT
    continues = branches == branches.roll(1, dims=1)  # `roll` wraps around, but the first row is a start row either way
    num_context = is_context.sum(dim=-1, keepdim=True)
    carried = torch.where(continues | is_context, rows, num_context) - 1
    return make_rows(ids, positions, carried, rows.expand_as(branches))


def branch_mask(branches: torch.LongTensor) -> torch.BoolTensor:
    """Return the attention mask (batch, 1, rows, rows) of [`branch_rows`]. With a single branch, it is causal."""
    rows = torch.arange(branches.shape[1], device=branches.device)
    columns, branches = branches[:, None, :], branches[:, :, None]
    return (((columns == CONTEXT) | (columns == branches)) & (rows <= rows[:, None]))[:, None]


def chain(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Return `branches` (batch, rows): context below `num_context`, branch 0 below `ends`, then padding."""
    ranks = torch.arange(num_rows, device=ends.device)
    return torch.where(ranks < num_context[:, None], CONTEXT, 0).masked_fill(ranks >= ends[:, None], PADDING)


def parallel_queries(num_context: torch.LongTensor, ends: torch.LongTensor, num_rows: int) -> torch.LongTensor:
    """Return `branches` as [`chain`] does, but with one branch for each rank from `num_context` to `ends` - 1."""
    branches = chain(num_context, ends, num_rows)
    return torch.where(branches < 0, branches, torch.arange(num_rows, device=ends.device))


def step_rows(
    ids: torch.LongTensor, positions: torch.LongTensor, steps: torch.LongTensor
) -> tuple[dict[str, torch.LongTensor], torch.BoolTensor | None, torch.LongTensor, torch.BoolTensor]:
    """Return rows that predict all generated tokens of known sequences, each given the tokens of earlier steps.

    The first rows form a chain, in which row r predicts rank r. The chain contains the tokens, and predicts the first
    rank of each step. Each other rank of a step is predicted by a parallel query after the chain, which contains the
    last token before the step. `steps` (batch, n), by rank, is -1 at ranks that are not predicted.

    Returns:
        The rows in the format of [`make_rows`], their attention mask or None if attention is causal, the rank that each
        row predicts, and a boolean tensor (batch, rows), which is True at one row for each generated rank.
    """
    ranks = torch.arange(steps.shape[1], device=steps.device).expand_as(steps)
    is_generated = steps >= 0
    is_query = is_generated & (steps == steps.roll(1, dims=1)) & (ranks > 0)
    num_context = ranks.masked_fill(is_query, 0).cummax(dim=1).values  # ranks before the step
    num_chain = int(num_context.masked_fill(~is_generated, 0).max()) + 1
    num_queries = int(is_query.sum(dim=1).max())
    queries = (~is_query).long().argsort(dim=1, stable=True)[:, :num_queries]  # a sequence may have fewer queries
    targets = torch.cat((ranks[:, :num_chain], queries), dim=1)
    rows = torch.arange(targets.shape[1], device=steps.device)
    is_chain = rows < num_chain
    num_context = torch.where(is_chain, targets, num_context.gather(1, targets))
    mask = ((rows < num_context[..., None]) | (rows == rows[:, None]))[:, None] if num_queries else None
    is_predicted = is_generated.gather(1, targets) & (is_query.gather(1, targets) != is_chain)
    return make_rows(ids, positions, num_context - 1, targets), mask, targets, is_predicted
