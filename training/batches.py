# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Batches of a run. The content of a batch depends only on the step and the seed.

A sample is a training sequence of a run. Step s trains on the samples s * batch_size ... (s + 1) * batch_size - 1. A
run can therefore start at any step, and a batch is the same for any number of processes, workers and passes.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import DataLoader

from common.packing import PackedRows


@lru_cache(maxsize=2)  # a batch may contain sequences of two epochs
def epoch_permutation(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the random permutation of 0 ... `num_rows` - 1 for an epoch. It depends only on the arguments."""
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def rows_of_samples(samples: list[int], num_rows: int, seed: int) -> list[int]:
    """Return the index of each sample's sequence. Every epoch is a new permutation of all `num_rows` sequences."""
    return [int(epoch_permutation(num_rows, seed, sample // num_rows)[sample % num_rows]) for sample in samples]


class Samples:
    """Map-style dataset that maps the number of a sample to the input features of a data collator."""

    def __init__(self, rows: Dataset | PackedRows, seed: int) -> None:
        self.rows = rows if isinstance(rows, PackedRows) else rows.with_format("numpy")
        self.seed = seed

    def __getitems__(self, samples: list[int]) -> list[dict[str, Any]]:
        columns = self.rows[rows_of_samples(samples, len(self.rows), self.seed)] | {"order_seed": samples}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def pass_samples(
    steps: range, batch_size: int, accumulation_steps: int, process: int, num_processes: int
) -> Iterator[list[int]]:
    """Yield the numbers of the samples of each forward pass of a process, in the order of the passes."""
    pass_size = batch_size // (accumulation_steps * num_processes)
    for step in steps:
        for accumulated in range(accumulation_steps):
            first = step * batch_size + (accumulated * num_processes + process) * pass_size
            yield list(range(first, first + pass_size))


class Batches(Iterator):
    """Iterator over the collated batches of forward passes, from `Samples` or `StreamedSamples`.

    `position` is where to resume in the streamed corpus after the last batch. For `Samples`, it is None.
    """

    def __init__(
        self, samples: Any, passes: Iterator[list[int]], collator: Callable, num_workers: int, pin_memory: bool
    ) -> None:
        loader = DataLoader(
            samples,
            batch_sampler=passes,
            collate_fn=partial(_collate, collator),
            num_workers=num_workers,
            pin_memory=pin_memory,
            worker_init_fn=_end_with_parent,
        )
        self.position: dict[str, int] | None = None
        self._batches = iter(loader)

    def __next__(self) -> dict[str, Any]:
        batch, self.position = next(self._batches)
        return batch


def _end_with_parent(worker: int) -> None:
    """Make a worker ignore the signals that stop a run. When the training process ends or is killed, end the worker.

    Launchers and terminals send these signals to all processes, but the current step still needs its workers. From
    Python 3.14 on, the parent of a worker is a fork server, which lives as long as its children.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _collate(collator: Callable, features: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, int] | None]:
    """Return a batch, and the `position` of its last sample, if there is one."""
    return collator(features), features[-1].get("position")
