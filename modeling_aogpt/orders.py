# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Orders as data. `orders[b, k]` is the position of sequence b that is predicted at rank k, counted from 0; every row is a
permutation of 0 ... n - 1. "In place" means aligned with positions, "in order" means aligned with ranks.
"""

import torch

from .devices import draw_uniform


def left_to_right_orders(batch_size: int, length: int, device: torch.device | str | None = None) -> torch.LongTensor:
    """The identity order for every sequence, (batch, n)."""
    return torch.arange(length, device=device).expand(batch_size, length)


def random_orders(
    batch_size: int,
    length: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> torch.LongTensor:
    """Independent uniform orders, (batch, n)."""
    # In float64 a tie, which the sort would break in favour of the lower position, has a chance of about n^2 / 2^54.
    return draw_uniform(batch_size, length, generator=generator, device=device).argsort(dim=-1)


def blocks_of(
    positions: torch.LongTensor, block_length: int | None = None, stride: int | None = None
) -> torch.LongTensor:
    """
    The block of each position, in the shape of `positions`: contiguous blocks of `block_length`, or strided ones, which
    hold every position that leaves the same rest modulo `stride`; a single block without either.
    """
    if block_length is not None:
        return positions // block_length
    return positions % stride if stride is not None else torch.zeros_like(positions)


def check_tensor(value: object, name: str) -> None:
    """Raises a `TypeError` unless `value` is a tensor. `name` is of the argument, for errors."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} is a {type(value).__name__}, but must be a torch.Tensor: torch.tensor makes one of numbers, a "
            "tokenizer with return_tensors='pt'."
        )


def check_orders(
    orders: torch.Tensor,
    batch_size: int,
    length: int,
    name: str = "orders",
    needed: str = "one position for each token of input_ids",
) -> None:
    """
    Raises a `ValueError` unless `orders` is (batch, n), of integers, with a permutation in every row. `name` and what
    is `needed` are of the argument, for errors.
    """
    check_tensor(orders, name)
    if tuple(orders.shape) != (batch_size, length):
        raise ValueError(f"{name} has shape {tuple(orders.shape)}, but must have {needed}: ({batch_size}, {length}).")
    if orders.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} has dtype {orders.dtype}; positions must be integers: use {name}.long().")
    identity = torch.arange(length, device=orders.device)
    wrong = (orders.sort(dim=-1).values != identity).any(dim=-1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{name}[{row}] is not a permutation of 0 ... {length - 1}: each position must occur exactly once "
            f"(torch.randperm({length}) makes one). Given: {orders[row].tolist()[:16]}{' ...' if length > 16 else ''}"
        )


def check_batch(input_ids: torch.Tensor, name: str = "input_ids") -> None:
    """Raises a `ValueError` unless the ids are integers of shape (batch, n), of one sequence at least."""
    check_tensor(input_ids, name)
    if input_ids.dim() != 2 or input_ids.shape[0] == 0:
        raise ValueError(f"{name} has shape {tuple(input_ids.shape)}, but must be (batch, length) with batch >= 1.")
    if input_ids.is_floating_point():
        raise ValueError(f"{name} has dtype {input_ids.dtype}, but ids are integers: use {name}.long().")


def check_aligned(values: torch.Tensor, input_ids: torch.Tensor, name: str = "attention_mask") -> None:
    """
    Raises a `ValueError` unless the argument of this name has the shape of the ids (batch, n). Gathering, flattening
    and broadcasting would take some others in silence, and leave out or confuse columns or sequences.
    """
    check_tensor(values, name)
    if values.shape != input_ids.shape:
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, but input_ids {tuple(input_ids.shape)}: give one value for each "
            "token."
        )


def group_order(orders: torch.LongTensor, groups: torch.Tensor) -> torch.LongTensor:
    """
    Reorders each order so that positions of lower `groups` value (batch, n, in place) come first; within a group they
    keep their relative order. Thus a uniform order stays uniform within every group.
    """
    return in_order(orders, in_order(groups, orders).argsort(dim=-1, stable=True))


def in_order(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """Values (batch, n) in place -> in order: result[b, k] = values[b, orders[b, k]]."""
    return values.gather(1, orders)


def in_place(values: torch.Tensor, orders: torch.LongTensor) -> torch.Tensor:
    """Values (batch, n, ...) in order -> in place: result[b, orders[b, k]] = values[b, k]."""
    ranks = orders.argsort(dim=-1)
    return values.gather(1, ranks.view(*ranks.shape, *[1] * (values.dim() - 2)).expand_as(values))


def tokens_of(input_ids: torch.LongTensor, attention_mask: torch.Tensor | None) -> torch.BoolTensor:
    """Which ids (batch, n) are tokens and no padding: where `attention_mask` is not 0, or all without one."""
    return torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0


def token_positions(is_token: torch.BoolTensor) -> torch.LongTensor:
    """
    The position of each token (batch, n) when padding, wherever it stands, is not counted: the first token is at 0. At
    padding the value is that of the token before it, or 0.
    """
    return (is_token.long().cumsum(dim=-1) - 1).clamp(min=0)
