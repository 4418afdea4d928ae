# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
What is drawn at random for a batch: orders, times and masks, each a function of the seed, the step and the sample.

So they are the same however many processes, workers and passes share a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modeling_aogpt import DataCollatorForAnyOrderLM
from modeling_aogpt.data_collator import draw_integers, make_streams, to_uniform
from modeling_aogpt.unmasking import MAX_MASKED_FRACTION

# Independent streams of one seed. (That of the orders is the seed's own.)
CHOICES, TIMES, MASKS = -2, -3, -4


def uniform_numbers(seed: int, purpose: int, samples: torch.LongTensor, count: int) -> torch.Tensor:
    """Float64 in [0, 1), (samples, count)."""
    return to_uniform(draw_integers(make_streams(int(make_streams(seed, torch.tensor(purpose))), samples), count))


@dataclass
class OrderDraws:
    """
    Data collator for the decoder: sequences with an order each.

    With `final_left_to_right_fraction`, the fraction of left-to-right sequences changes linearly during the run.

    Args:
        seed (`int`): Seed of the orders.
        batch_size (`int`): Number of sequences per step.
        max_steps (`int`): Number of steps of the run.
        orders (`str`): As `block_length`, `stride` and `left_to_right_fraction`, see [`OrderDistribution`].
        block_length (`int`, *optional*): See [`OrderDistribution`].
        stride (`int`, *optional*): See [`OrderDistribution`].
        left_to_right_fraction (`float`, *optional*): See [`OrderDistribution`].
        final_left_to_right_fraction (`float`, *optional*): Fraction in the last step; defaults to that of the first.
    """

    seed: int
    batch_size: int
    max_steps: int
    orders: str = "random"
    block_length: int | None = None
    stride: int | None = None
    left_to_right_fraction: float | None = None
    final_left_to_right_fraction: float | None = None

    def __post_init__(self) -> None:
        last = self.final_left_to_right_fraction
        fractions = (self.left_to_right_fraction, self.left_to_right_fraction if last is None else last)
        self._first, self._last = (
            DataCollatorForAnyOrderLM(
                orders=self.orders,
                block_length=self.block_length,
                stride=self.stride,
                left_to_right_fraction=fraction,
                seed=self.seed,
            )
            for fraction in fractions
        )

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """`input_ids`, `orders` and `labels` (batch, n) of features with `input_ids` and `order_seed`, the sample."""
        batch = self._first(features)
        if self._last != self._first:
            samples = samples_of(features)
            progress = samples // self.batch_size / max(self.max_steps - 1, 1)
            is_last = uniform_numbers(self.seed, CHOICES, samples, 1) < progress[:, None]
            batch["orders"] = torch.where(is_last, self._last(features)["orders"], batch["orders"])
        return batch


@dataclass
class MaskDraws:
    """
    Batches for the encoder: sequences with a time and masks each.

    The times of a step are a shifted grid of as many points as the step has sequences, so every part of (0, 1] has its
    share in every step (variational diffusion models, arXiv 2107.00630, appendix I.1); sequences that lie together in a
    pass get times that lie apart.

    Args:
        seed (`int`): Of all draws.
        batch_size (`int`): Sequences of a step.
        objective (`str`): `"masked_diffusion"` masks every token with probability t; `"score_entropy"` with probability
            (1 - eps) t, the log-linear noise of SEDD; `"any_order"` masks the last t n positions of an order, where t n
            is one of 1 ... n.
        draw_orders (`OrderDraws`, *optional*): For the orders of `"any_order"`.
    """

    seed: int
    batch_size: int
    objective: str = "masked_diffusion"
    draw_orders: OrderDraws | None = None

    def __call__(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """`input_ids` and `is_masked` (batch, n), and `times` (batch,), of features as [`OrderDraws`] takes them."""
        samples = samples_of(features)
        times = self.times(samples)
        if self.objective == "any_order":
            batch = self.draw_orders(features)
            input_ids, length = batch["input_ids"], batch["input_ids"].shape[1]
            num_masked = (times * length).ceil().clamp(1, length)
            is_masked = batch["orders"].argsort(dim=-1) >= length - num_masked[:, None]
            times = num_masked / length
        else:
            input_ids = torch.stack([torch.as_tensor(feature["input_ids"]) for feature in features]).long()
            share = times * (MAX_MASKED_FRACTION if self.objective == "score_entropy" else 1.0)
            is_masked = uniform_numbers(self.seed, MASKS, samples, input_ids.shape[1]) < share[:, None]
        return {"input_ids": input_ids, "is_masked": is_masked, "times": times}

    def times(self, samples: torch.LongTensor) -> torch.DoubleTensor:
        """The time of each sample, in (0, 1]."""
        shifts = uniform_numbers(self.seed, TIMES, samples // self.batch_size, 1)[:, 0]
        places = samples % self.batch_size * _spread(self.batch_size) % self.batch_size
        return 1 - (shifts + places / self.batch_size) % 1


def samples_of(features: Sequence[Mapping[str, object]]) -> torch.LongTensor:
    return torch.tensor([int(feature["order_seed"]) for feature in features])


def _spread(size: int) -> int:
    """A step through `size` places that visits each once, and spreads any run of visits: near the golden section."""
    golden = round(size * (math.sqrt(5) - 1) / 2)
    return next(step for step in range(max(golden, 1), size + 2) if math.gcd(step, size) == 1)
