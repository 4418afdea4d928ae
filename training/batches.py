# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Which sequences a step is trained on: a function of the step and the seed alone.

A run reads samples 0, 1, 2, ...; step s takes those from s * batch_size to (s + 1) * batch_size - 1. So it can begin
at any step, and a batch holds the same sequences, in the same orders, however many processes and passes share it.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import DataLoader


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def epoch_permutation(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def rows_of_samples(samples: list[int], num_rows: int, seed: int) -> list[int]:
    """The row that each sample reads: every epoch is a new permutation of all rows."""
    return [int(epoch_permutation(num_rows, seed, sample // num_rows)[sample % num_rows]) for sample in samples]


class Samples:
    """A map from sample numbers to what the collator takes."""

    def __init__(self, rows: Dataset, seed: int) -> None:
        self.rows = rows.select_columns("input_ids").with_format("numpy")
        self.seed = seed

    def __getitems__(self, samples: list[int]) -> list[dict[str, Any]]:
        input_ids = self.rows[rows_of_samples(samples, len(self.rows), self.seed)]["input_ids"]
        return [{"input_ids": ids, "order_seed": sample} for ids, sample in zip(input_ids, samples, strict=True)]


def pass_samples(
    steps: range, batch_size: int, accumulation_steps: int, process: int, num_processes: int
) -> Iterator[list[int]]:
    """The sample numbers of each forward pass of one process."""
    pass_size = batch_size // (accumulation_steps * num_processes)
    for step in steps:
        for accumulated in range(accumulation_steps):
            first = step * batch_size + (accumulated * num_processes + process) * pass_size
            yield list(range(first, first + pass_size))


def training_batches(
    rows: Dataset, passes: Iterator[list[int]], collator: Callable, seed: int, num_workers: int, pin_memory: bool
) -> Iterator[dict[str, Any]]:
    """The collated batch of each pass."""
    loader = DataLoader(
        Samples(rows, seed),
        batch_sampler=passes,
        collate_fn=collator,
        num_workers=num_workers,
        pin_memory=pin_memory,
    )
    return iter(loader)
