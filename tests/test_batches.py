# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import multiprocessing
import os
import signal

import pytest
import torch
from datasets import Dataset

from modeling_aogpt import DataCollatorForAnyOrderLM
from training.batches import Batches, Samples, pass_samples, rows_of_samples

ROWS = Dataset.from_dict({"input_ids": [[row, row, row, row] for row in range(7)], "num_bytes": [4] * 7})


def batches(
    steps: range, accumulation_steps: int = 1, process: int = 0, num_processes: int = 1, workers: int = 0
) -> list:
    passes = pass_samples(steps, 12, accumulation_steps, process, num_processes)
    return list(Batches(Samples(ROWS, 5), passes, DataCollatorForAnyOrderLM(), num_workers=workers, pin_memory=False))


def test_every_epoch_is_another_permutation_of_all_rows() -> None:
    epochs = [rows_of_samples(list(range(7 * epoch, 7 * epoch + 7)), 7, seed=5) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert rows_of_samples(list(range(7)), 7, seed=6) not in epochs  # nor of another epoch


def test_orders_are_seeded_by_the_sample_number() -> None:
    features = Samples(ROWS, seed=5).__getitems__([3, 10, 10])
    assert [feature["order_seed"] for feature in features] == [3, 10, 10]
    assert [feature["input_ids"][0] for feature in features] == rows_of_samples([3, 10, 10], 7, seed=5)


def test_labels_of_the_data_are_passed_on() -> None:
    rows = ROWS.add_column("labels", [[-100, -100, row, row] for row in range(7)])
    for feature in Samples(rows, seed=5).__getitems__([3, 10]):
        row = feature["input_ids"][0]
        assert feature["labels"].tolist() == [-100, -100, row, row]


def test_a_run_can_start_at_any_step() -> None:
    for expected, batch in zip(batches(range(5))[2:], batches(range(2, 5)), strict=True):
        assert expected.keys() == batch.keys()
        assert all(torch.equal(expected[key], batch[key]) for key in expected)


@pytest.mark.parametrize(("accumulation_steps", "num_processes"), [(3, 1), (1, 2), (2, 3)])
def test_the_batch_does_not_depend_on_passes_and_processes(accumulation_steps: int, num_processes: int) -> None:
    def contents(batches: list[dict[str, torch.Tensor]]) -> list[list[int]]:
        return sorted(row for batch in batches for row in torch.cat((batch["input_ids"], batch["orders"]), 1).tolist())

    whole = batches(range(3))
    divided = [batches(range(3), accumulation_steps, process, num_processes) for process in range(num_processes)]
    for step in range(3):
        passes = slice(step * accumulation_steps, (step + 1) * accumulation_steps)
        assert contents([batch for process in divided for batch in process[passes]]) == contents([whole[step]])
    assert len(contents(whole)) == 36


def test_the_batch_does_not_depend_on_workers() -> None:
    for expected, batch in zip(batches(range(2)), batches(range(2), workers=2), strict=True):
        assert all(torch.equal(expected[key], batch[key]) for key in expected)


def test_workers_ignore_signals_that_stop_a_run() -> None:
    """Launchers send SIGTERM, and terminals send SIGINT, to all processes of a run."""
    passes = pass_samples(range(9), 12, 1, 0, 1)
    iterator = Batches(Samples(ROWS, 5), passes, DataCollatorForAnyOrderLM(), num_workers=1, pin_memory=False)
    next(iterator)
    (worker,) = multiprocessing.active_children()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker.pid, number)
    assert len(list(iterator)) == 8
