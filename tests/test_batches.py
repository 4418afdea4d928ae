# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
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
    assert rows_of_samples(list(range(7)), 7, seed=6) not in epochs  # nor is it that of another epoch


def test_rows_are_a_function_of_the_sample_number() -> None:
    together = rows_of_samples(list(range(5, 30)), 7, seed=5)  # runs over the ends of four epochs
    assert together == [rows_of_samples([sample], 7, seed=5)[0] for sample in range(5, 30)]


def test_order_is_seeded_by_the_sample_number() -> None:
    features = Samples(ROWS, seed=5).__getitems__([3, 10, 10])
    assert [feature["order_seed"] for feature in features] == [3, 10, 10]
    assert [feature["input_ids"][0] for feature in features] == rows_of_samples([3, 10, 10], 7, seed=5)


def test_run_can_begin_at_any_step() -> None:
    for whole, late in zip(batches(range(5))[2:], batches(range(2, 5)), strict=True):
        assert whole.keys() == late.keys()
        assert all(torch.equal(whole[key], late[key]) for key in whole)


@pytest.mark.parametrize(("accumulation_steps", "num_processes"), [(3, 1), (1, 2), (2, 3)])
def test_passes_and_processes_share_the_same_batch(accumulation_steps: int, num_processes: int) -> None:
    def contents(parts: list[dict[str, torch.Tensor]]) -> list[list[int]]:
        return sorted(torch.cat([torch.cat((part["input_ids"], part["orders"]), dim=1) for part in parts]).tolist())

    whole = batches(range(3))
    shares = [batches(range(3), accumulation_steps, process, num_processes) for process in range(num_processes)]
    for step in range(3):
        passes = slice(step * accumulation_steps, (step + 1) * accumulation_steps)
        assert contents([part for share in shares for part in share[passes]]) == contents([whole[step]])
    assert len(contents(whole)) == 36


def test_worker_processes_change_nothing() -> None:
    for alone, helped in zip(batches(range(2)), batches(range(2), workers=2), strict=True):
        assert all(torch.equal(alone[key], helped[key]) for key in alone)
