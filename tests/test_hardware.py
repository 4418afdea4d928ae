# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from training.hardware import check_launch, num_cores, share_cpus, use_all_cores, versions

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("environment", "device", "expected"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cpu", [4]),  # `accelerate launch` sets both
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "3"}, "cpu", []),
        ({"OMP_NUM_THREADS": "1"}, "cpu", []),
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cuda", []),
    ],
)
def test_launcher_leaves_no_core_idle(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], device: str, expected: list[int]
) -> None:
    for name in ("ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: list[int] = []
    monkeypatch.setattr("training.hardware.num_cores", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    use_all_cores(SimpleNamespace(device=torch.device(device), num_processes=2))
    assert given == expected


def test_freed_tensors_go_back_to_the_system() -> None:
    """Others that live longer lie between them."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc can be told")
    code = """
import psutil, torch
from training.hardware import return_freed_memory
torch.ones(8_000_000).sum()  # freed: glibc's threshold for tensors of their own rises above it
tensors = [torch.ones(1_000_000) for _ in range(200)]
full = psutil.Process().memory_info().rss
del tensors[:-1]
return_freed_memory()
print(full - psutil.Process().memory_info().rss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) > 0.9 * 199 * 4_000_000


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType.NO, num_processes=1)
    check_launch(accelerator)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were launched, but Accelerate knows of 1"):
        check_launch(accelerator)


@pytest.mark.parametrize(
    ("device", "num_processes", "takes_cpus"),
    [(None, 1, False), (None, 2, True), ("cuda", 1, False), ("cuda", 2, False), ("mps", 1, True)],
)
def test_cpus_are_taken_where_there_is_nothing_else_that_will_do(
    monkeypatch: pytest.MonkeyPatch, device: str | None, num_processes: int, takes_cpus: bool
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device and torch.device(device))
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    assert share_cpus() is takes_cpus


def test_facts_are_there() -> None:
    assert num_cores() >= 1
    assert versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]  # CUDA builds say so in one of them
