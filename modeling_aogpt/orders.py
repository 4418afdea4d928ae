# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Functions that draw and apply orders.

An order is a permutation of the positions of a sequence. `orders[b, k]` is the position of sequence b that is predicted
at rank k. Positions and ranks are counted from 0. Values of shape (batch, n) are indexed either by position, as in the
text, or by rank. `index_by_rank` and `index_by_position` convert between the two.
"""

from collections.abc import Callable

import torch

from .devices import draw_uniform
from .validation import check_choice, check_integer, check_orders

# Type of arguments that specify orders: a tensor (batch, n), a name in ORDER_NAMES, or a function that is called as
# orders(batch, n, generator=generator) and returns a tensor (batch, n).
Orders = torch.LongTensor | str | Callable[..., torch.LongTensor]
ORDER_NAMES = ("left_to_right", "random")


def left_to_right_orders(batch_size: int, length: int, device: torch.device | str | None = None) -> torch.LongTensor:
    """Return the left-to-right order of every sequence, a tensor (batch, n)."""
    return torch.arange(length, device=device).expand(batch_size, length)


def random_orders(
    batch_size: int,
    length: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> torch.LongTensor:
    """
    Draw an independent, uniformly random order for each sequence, and return a tensor (batch, n).

    Examples:
        >>> random_orders(2, 5, generator=torch.Generator().manual_seed(0))
        tensor([[2, 4, 1, 3, 0],
                [1, 4, 2, 3, 0]])
    """
    # Sorting equal keys would favour lower positions, so orders would not be uniform. Keys are float64, because equal
    # keys are then rare: a sequence has some with a probability of about n^2 / 2^54.
    return draw_uniform(batch_size, length, generator=generator, device=device).argsort(dim=-1)


def index_by_rank(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """
    Convert values (batch, n) from indexing by position to indexing by rank.

    The result satisfies `result[b, k] = values[b, orders[b, k]]`.
    """
    return values.gather(1, orders)


def index_by_position(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """
    Convert values (batch, n, ...) from indexing by rank to indexing by position.

    The result satisfies `result[b, orders[b, k]] = values[b, k]`.
    """
    ranks = orders.argsort(dim=-1)
    return values.gather(1, ranks.view(*ranks.shape, *[1] * (values.dim() - 2)).expand_as(values))


def group_orders(orders: torch.LongTensor, groups: torch.Tensor) -> torch.LongTensor:
    """
    Reorder each order so that positions of lower groups come first, and keep the relative order within each group.

    `groups` (batch, n) holds the group number of each position. A uniformly random order stays uniformly random within
    each group.
    """
    return index_by_rank(orders, index_by_rank(groups, orders).argsort(dim=-1, stable=True))


def block_indices(
    positions: torch.LongTensor, block_length: int | None = None, stride: int | None = None
) -> torch.LongTensor:
    """
    Return the index of the block of each position, a tensor with the shape of `positions`.

    With `block_length`, blocks are contiguous. With `stride`, block i contains the positions i, i + stride, i + 2
    stride, ... If neither is given, all positions are in block 0.
    """
    if block_length is not None:
        return positions // block_length
    return positions % stride if stride is not None else torch.zeros_like(positions)


def token_mask(input_ids: torch.LongTensor, attention_mask: torch.Tensor | None) -> torch.BoolTensor:
    """Return a boolean tensor (batch, n) that is False at padding, where `attention_mask` is 0, and True elsewhere."""
    return torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0


def token_positions(is_token: torch.BoolTensor) -> torch.LongTensor:
    """
    Return the position of each token (batch, n), counted without padding. The first token of a sequence has position 0.

    Padding gets the position of the last token before it, or 0 if there is none.
    """
    return (is_token.long().cumsum(dim=-1) - 1).clamp(min=0)


class OrderSource:
    """
    Source of orders: a tensor, a name in `ORDER_NAMES`, or a function.

    Args:
        orders (`torch.LongTensor` of shape `(batch, n)`, `str` or `Callable`): A tensor of orders, `"left_to_right"`,
            `"random"`, or a function that is called as `orders(batch, n, generator=generator)` and returns a tensor
            (batch, n).
        block_length (`int`, *optional*): Only if `orders` is a name: predict contiguous blocks of this length one after
            another, from left to right. `orders` applies within each block.
        stride (`int`, *optional*): Like `block_length`, but with strided blocks (see [`block_indices`]).
        name (`str`): Name of the caller's argument, used in error messages.
        expected (`str`): Explanation that error messages add after the required shape of a tensor of orders.
    """

    def __init__(
        self,
        orders: Orders,
        block_length: int | None = None,
        stride: int | None = None,
        name: str = "orders",
        expected: str = "",
    ) -> None:
        self.orders, self.block_length, self.stride = orders, block_length, stride
        self.name, self.expected = name, expected
        check_blocks(block_length, stride)
        is_name = isinstance(orders, str)
        if is_name:
            check_choice(name, orders, ORDER_NAMES, ", a (batch, n) tensor or a function that returns such a tensor")
        elif not isinstance(orders, torch.Tensor) and not callable(orders):
            raise ValueError(
                f"`{name}` must be a (batch, n) tensor, one of {', '.join(map(repr, ORDER_NAMES))}, or a function that "
                f"returns a tensor, but has type {type(orders).__name__}."
            )
        if not is_name and (block_length is not None or stride is not None):
            raise ValueError(
                f"`block_length` and `stride` need orders given by name, but `{name}` has type "
                f"{type(orders).__name__}. Remove `block_length` and `stride`, or set `{name}='random'`."
            )
        # `is_random`: calls of `draw` may return different orders. `is_uniform`: all orders are equally likely.
        self.is_random = not isinstance(orders, torch.Tensor) and orders != "left_to_right"
        self.is_uniform = is_name and orders == "random" and block_length is None and stride is None

    def draw(self, is_token: torch.BoolTensor, generator: torch.Generator | None) -> torch.LongTensor:
        """
        Return orders (batch, n) with padding at the end. Every call draws new random orders.

        `is_token` (batch, n) is False at padding, and is indexed by position.
        """
        (batch_size, length), device = is_token.shape, is_token.device
        if not isinstance(self.orders, str):
            is_given = isinstance(self.orders, torch.Tensor)
            orders = self.orders if is_given else self.orders(batch_size, length, generator=generator)
            check_orders(self.name, orders, batch_size, length, self.expected)
            orders = orders.to(device, torch.long)
        elif self.orders == "random":
            orders = random_orders(batch_size, length, generator=generator, device=device)
        else:
            orders = left_to_right_orders(batch_size, length, device=device)
        blocks = block_indices(token_positions(is_token), self.block_length, self.stride)
        return group_orders(orders, torch.where(is_token, blocks, length))


def check_blocks(block_length: int | None, stride: int | None) -> None:
    """Raise a `ValueError` if both arguments are given, or if one is not an integer of at least 1."""
    for name, value in (("block_length", block_length), ("stride", stride)):
        if value is not None:
            check_integer(name, value)
    if block_length is not None and stride is not None:
        raise ValueError(
            f"`block_length` ({block_length}) and `stride` ({stride}) cannot be combined, because each of them cuts a "
            "sequence into blocks. Remove one of them."
        )
