# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Four processes on two machines, as threads with a store in common."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from training import processes
from training.processes import check_alike, in_turn

MACHINES = [SimpleNamespace(num_processes=4, process_index=rank, local_process_index=rank % 2) for rank in range(4)]
for accelerator in MACHINES:
    accelerator.is_main_process = accelerator.process_index == 0
    accelerator.is_local_main_process = accelerator.local_process_index == 0


def take_turns(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], None]) -> list[BaseException | None]:
    """What each process ends with."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(processes, "_get_default_store", lambda: store)

    def run(accelerator: SimpleNamespace) -> None:
        with in_turn(accelerator):
            work(accelerator.process_index)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(run, accelerator) for accelerator in reversed(MACHINES)]
        return [future.exception(timeout=60) for future in reversed(futures)]


def test_the_main_process_goes_first_then_one_of_each_machine_then_all(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    seen: dict[int, list[int]] = {}

    def work(process: int) -> None:
        seen[process] = list(done)
        time.sleep(0.05)
        done.append(process)

    assert take_turns(monkeypatch, work) == [None] * 4
    assert seen[0] == []
    assert all(0 in seen[process] for process in (1, 2, 3))
    assert 2 in seen[3]


@pytest.mark.parametrize(("culprit", "worked"), [(0, {0}), (2, {0, 1, 2}), (3, {0, 1, 2, 3})])
def test_where_one_fails_the_others_end_without_a_word(
    monkeypatch: pytest.MonkeyPatch, culprit: int, worked: set[int]
) -> None:
    began = set()

    def work(process: int) -> None:
        began.add(process)
        if process == culprit:
            raise ValueError("There is no file")

    ended = take_turns(monkeypatch, work)
    assert began == worked
    assert isinstance(ended.pop(culprit), ValueError)
    assert [(type(error), error.code) for error in ended] == [(SystemExit, 1)] * 3


def test_one_process_has_nobody_to_wait_for() -> None:
    with in_turn(SimpleNamespace(num_processes=1)):
        pass


def test_machines_that_see_other_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_alike(MACHINES[0], checkpoint="checkpoint-00000003.safetensors")
    monkeypatch.setattr(processes, "gather_object", lambda found: [*found, *found, {"checkpoint": None}])
    with pytest.raises(ValueError, match=r"Process 2 finds another checkpoint than process 0: None, not .*00000003"):
        check_alike(MACHINES[0], checkpoint="checkpoint-00000003.safetensors")
