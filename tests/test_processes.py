# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Four processes on two machines, simulated by threads; and the start of a single process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common import processes
from common.files import read_yaml
from common.processes import (
    check_same_everywhere,
    in_turn,
    must_use_cpu,
    start_accelerator,
)

MACHINES = [SimpleNamespace(num_processes=4, process_index=rank, local_process_index=rank % 2) for rank in range(4)]
for accelerator in MACHINES:
    accelerator.is_main_process = accelerator.process_index == 0
    accelerator.is_local_main_process = accelerator.local_process_index == 0


class Threads:
    """Processes that are threads, instead of `torch.distributed`."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(4, timeout=60)
        self.given: dict[int, bool] = {}

    def all_gather_object(self, gathered: list[bool], value: bool, group: None) -> None:
        self.given[threading.get_ident()] = value
        self.barrier.wait()
        gathered[:] = self.given.values()
        self.barrier.wait()


def take_turns(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[int], None], context: Callable[..., Any] = in_turn
) -> list[BaseException | None]:
    """Run `work` in all processes, and return their errors."""
    monkeypatch.setattr(processes, "distributed", Threads())
    monkeypatch.setattr(processes, "cpu_group", lambda: None)

    def run(accelerator: SimpleNamespace) -> None:
        with context(accelerator):
            work(accelerator.process_index)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(run, accelerator) for accelerator in reversed(MACHINES)]
        return [future.exception(timeout=60) for future in reversed(futures)]


def test_the_main_process_is_first_then_one_of_each_machine_then_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("failing", "expected"), [(0, {0}), (2, {0, 2}), (3, {0, 1, 2, 3})])
def test_if_one_process_fails_the_others_exit_without_a_message(
    monkeypatch: pytest.MonkeyPatch, failing: int, expected: set[int]
) -> None:
    started = set()

    def work(process: int) -> None:
        started.add(process)
        if process == failing:
            raise ValueError("There is no file")

    errors = take_turns(monkeypatch, work)
    assert started == expected
    assert isinstance(errors.pop(failing), ValueError)
    assert [(type(error), error.code) for error in errors] == [(SystemExit, 1)] * 3


def test_a_single_process_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "distributed", None)
    worked = []
    with in_turn(SimpleNamespace(num_processes=1, is_main_process=True)):
        worked.append(True)
    assert worked == [True]
    with pytest.raises(ValueError, match="no file"), in_turn(SimpleNamespace(num_processes=1, is_main_process=True)):
        raise ValueError("no file")


def test_values_that_differ_between_machines_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same_everywhere(checkpoint="checkpoint-00000003.safetensors")
    monkeypatch.setattr(processes, "gather_object", lambda values: [*values, *values, {"checkpoint": None}])
    with pytest.raises(ValueError, match=r"`checkpoint` is None in process 2, but"):
        check_same_everywhere(checkpoint="checkpoint-00000003.safetensors")


def test_processes_that_are_not_connected_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def accelerator(**options: Any) -> SimpleNamespace:
        calls.append(options)
        return SimpleNamespace(num_processes=1, device=torch.device("cpu"))

    monkeypatch.setattr(processes, "Accelerator", accelerator)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert start_accelerator(mixed_precision="no").num_processes == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes .* only 1"):
        start_accelerator()
    assert calls == [{"cpu": False, "mixed_precision": "no"}, {"cpu": True}]


@pytest.mark.parametrize(
    ("device", "num_processes", "uses_cpu"),
    [(None, 1, False), (None, 2, True), ("cuda", 1, False), ("cuda", 2, False), ("mps", 1, True)],
)
def test_when_the_cpu_is_forced(
    monkeypatch: pytest.MonkeyPatch, device: str | None, num_processes: int, uses_cpu: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device and torch.device(device))
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    assert must_use_cpu() is uses_cpu


@pytest.mark.parametrize("name", ["cpu", "cpus", "gpu", "ddp", "fsdp2", "hsdp_nodes"])
def test_a_launch_file_for_gpus_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    launch = read_yaml(Path(__file__).parents[1] / "training" / "accelerate" / f"{name}.yaml")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launch["mixed_precision"])  # as the launcher sets it
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", launch.get("dynamo_config", {}).get("dynamo_backend", "NO"))
    monkeypatch.setattr(processes, "Accelerator", lambda **options: SimpleNamespace(num_processes=1))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with nullcontext() if launch["use_cpu"] else pytest.raises(ValueError, match=r"GPUs .*`mixed_precision: bf16`"):
        start_accelerator()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")  # accelerate launch --cpu
    start_accelerator()
