# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Orders for training, each a function of two numbers: the seed of the run and that of the sample.

A sample has its own stream of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014), whose k-th number needs no other: so all orders of a batch are computed at once, and are the same in whatever
batch, process or worker.
"""

import re
from dataclasses import dataclass

import torch

from .orders import blocks_of, group_order

ORDER_NAMES = "uniform, left_to_right, fixed, blocks-N, strided-N, fixed-blocks-N, fixed-strided-N"
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's increment, as torch's integers have it: signed
FIXED = -1  # the sample whose stream gives fixed orders


def split_mix(states: torch.LongTensor) -> torch.LongTensor:
    """SplitMix64's numbers of the given states: any 64-bit integer to another, bijectively, as if at random."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        states = (states ^ shift_right(states, shift)) * (factor - 2**64)
    return states ^ shift_right(states, 31)


def shift_right(values: torch.LongTensor, bits: int) -> torch.LongTensor:
    """As if the integers were unsigned: zeros come in."""
    return (values >> bits) & (2 ** (64 - bits) - 1)


def stream_of(seed: int, samples: torch.LongTensor) -> torch.LongTensor:
    """The state at which the stream of each sample begins."""
    return split_mix((seed * GOLDEN + 2**63) % 2**64 - 2**63 + samples)


def numbers_of(streams: torch.LongTensor, count: int) -> torch.LongTensor:
    """The first `count` numbers of each stream, (*streams.shape, count), any 64 bits."""
    return split_mix(streams[..., None] + GOLDEN * torch.arange(1, count + 1, device=streams.device))


def as_uniform(numbers: torch.LongTensor) -> torch.Tensor:
    """Numbers of a stream as float64 in [0, 1)."""
    return shift_right(numbers, 11).double() * 2.0**-53


@dataclass(frozen=True)
class OrderDistribution:
    """
    A distribution over the orders of training.

    Args:
        left_to_right_fraction (`float`): Share of sequences that are left to right (Finding 3: a tenth helps both
            losses). The others are uniform within their blocks, block after block:
        block_length (`int`, *optional*): Contiguous blocks of so many positions.
        stride (`int`, *optional*): Strided blocks: all positions that leave the same rest. Without either, one block.
        is_fixed (`bool`): One order for all sequences and the whole run, and the same one in every block, instead of
            one drawn for each sequence (Finding 2).

    Raises:
        ValueError: If a number is not allowed.
    """

    left_to_right_fraction: float = 0.0
    block_length: int | None = None
    stride: int | None = None
    is_fixed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.left_to_right_fraction <= 1:
            raise ValueError(f"left_to_right_fraction={self.left_to_right_fraction} must lie between 0 and 1.")
        for size in (self.block_length, self.stride):
            if size is not None and size < 1:
                raise ValueError(f"A block length or stride of {size} is given; it must be at least 1.")

    @classmethod
    def named(cls, name: str, left_to_right_fraction: float = 0.0) -> "OrderDistribution":
        """One of `ORDER_NAMES`, mixed with left to right. Raises a `ValueError` for other names."""
        if name == "left_to_right":
            return cls(left_to_right_fraction=1.0)
        match = re.fullmatch(r"uniform|(fixed)|(fixed-)?(blocks|strided)-([1-9]\d*)", name)
        if match is None:
            raise ValueError(f"{name!r} is no distribution of orders; there are {ORDER_NAMES} (N: a number).")
        always, in_blocks, kind, size = match.groups()
        return cls(
            left_to_right_fraction=left_to_right_fraction,
            block_length=int(size) if kind == "blocks" else None,
            stride=int(size) if kind == "strided" else None,
            is_fixed=bool(always or in_blocks),
        )

    def draw(self, seed: int, samples: torch.LongTensor, lengths: torch.LongTensor, width: int) -> torch.LongTensor:
        """
        The order of each sample, (batch, width): of its first `lengths` positions, then the others as they come.

        Row b is a function of `seed`, `samples[b]` and `lengths[b]` alone.
        """
        positions = torch.arange(width, device=samples.device)
        numbers = numbers_of(stream_of(seed, samples), width + 1)
        is_left_to_right = (as_uniform(numbers[:, 0]) < self.left_to_right_fraction)[:, None]
        keys = self._fixed_keys(seed, positions) if self.is_fixed else numbers[:, 1:]
        keys = torch.where(is_left_to_right, positions, shift_right(keys, 1))
        keys = keys.masked_fill(positions >= lengths[:, None], torch.iinfo(torch.int64).max)
        orders = keys.argsort(dim=-1, stable=True)
        if self.block_length is None and self.stride is None:
            return orders
        blocks = blocks_of(positions, self.block_length, self.stride).masked_fill(is_left_to_right, 0)
        return group_order(orders, blocks.masked_fill(positions >= lengths[:, None], width))

    def _fixed_keys(self, seed: int, positions: torch.LongTensor) -> torch.LongTensor:
        """The same keys at the same place of every block."""
        places = positions // (self.stride or 1) if self.block_length is None else positions % self.block_length
        return numbers_of(stream_of(seed, torch.tensor(FIXED, device=positions.device)), len(positions))[places]
