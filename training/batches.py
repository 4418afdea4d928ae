# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The sequences that a step is trained on: a function of the step and the seed alone.

A run reads samples 0, 1, 2, ...; step s takes those from s * batch_size to (s + 1) * batch_size - 1. So it can begin
at any step, and a batch holds the same sequences, in the same orders, however many processes and passes share it.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import wait as wait_for
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import DataLoader


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def epoch_permutation(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def rows_of_samples(samples: list[int], num_rows: int, seed: int) -> list[int]:
    """Return the row that each sample reads: every epoch is a new permutation of all rows."""
    return [int(epoch_permutation(num_rows, seed, sample // num_rows)[sample % num_rows]) for sample in samples]


class Samples:
    """A map from sample numbers to what the collator takes."""

    def __init__(self, rows: Dataset, seed: int) -> None:
        self.rows = rows.select_columns("input_ids").with_format("numpy")
        self.seed = seed

    def rows_of(self, samples: list[int]) -> list[int]:
        return rows_of_samples(samples, len(self.rows), self.seed)

    def __getitems__(self, samples: list[int]) -> list[dict[str, Any]]:
        input_ids = self.rows[self.rows_of(samples)]["input_ids"]
        return [{"input_ids": ids, "order_seed": sample} for ids, sample in zip(input_ids, samples, strict=True)]


def pass_samples(
    steps: range, batch_size: int, accumulation_steps: int, process: int, num_processes: int
) -> Iterator[list[int]]:
    """Yield the sample numbers of each forward pass of one process."""
    pass_size = batch_size // (accumulation_steps * num_processes)
    for step in steps:
        for accumulated in range(accumulation_steps):
            first = step * batch_size + (accumulated * num_processes + process) * pass_size
            yield list(range(first, first + pass_size))


class Batches:
    """
    An iterator over the collated batches of the passes.

    Args:
        samples: `Samples` or `StreamedSamples`.

    Attributes:
        position: Where a stream is to be read on after the last batch; None for `Samples`.
    """

    def __init__(
        self, samples: Any, passes: Iterator[list[int]], collator: Callable, num_workers: int, pin_memory: bool
    ) -> None:
        loader = DataLoader(
            samples,
            batch_sampler=passes,
            collate_fn=PositionedCollator(collator),
            num_workers=num_workers,
            pin_memory=pin_memory,
            worker_init_fn=end_with_training,
        )
        self.position: dict[str, int] | None = None
        self._batches = iter(loader)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, Any]:
        batch, self.position = next(self._batches)
        return batch


def end_with_training(worker: int) -> None:
    """
    Have a worker end when the training process does, however that ends.

    PyTorch's worker asks whether its parent is there. If that is a fork server, as from Python 3.14 on, it always is:
    the server lives as long as its children, and both would outlive a training process that was killed.
    """
    training_ended = multiprocessing.parent_process().sentinel

    def wait() -> None:
        wait_for([training_ended])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@dataclass
class PositionedCollator:
    """A collator that also returns the position of the last sample."""

    collator: Callable

    def __call__(self, features: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, int] | None]:
        return self.collator(features), features[-1].get("position")
