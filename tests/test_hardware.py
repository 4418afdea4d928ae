# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import os
import platform
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from common import hardware
from common.hardware import check_precision, num_cores, peak_flops


def test_device_name_is_that_of_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(device=torch.device("cpu"), num_processes=1, mixed_precision="no")
    cpu_info = "processor\t: 0\nmodel name\t: Fast: 2 GHz\nprocessor\t: 1\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: cpu_info)
    assert hardware.hardware(run)["device_name"] == "Fast: 2 GHz"
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert hardware.hardware(run)["device_name"]


def test_peak_flops_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(torch.device("cpu"), "no") is None
    for name, expected in (
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),  # a seventh of the device
        ("NVIDIA L4", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_flops(torch.device("cuda"), "bf16") == expected
        assert peak_flops(torch.device("cuda"), "no") is None


KEEP_MEMORY = """
import psutil, torch
from common.hardware import keep_freed_memory
keep_freed_memory()
before = psutil.Process().memory_info().rss
torch.ones(25_000_000)
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="changes only glibc")
def test_freed_memory_is_kept() -> None:
    process = subprocess.run([sys.executable, "-c", KEEP_MEMORY], capture_output=True, text=True, check=True)
    assert int(process.stdout) > 90_000_000  # by default, about a million


@pytest.mark.parametrize(("allowed", "physical", "expected"), [(4, 2, 2), (4, None, 4), (1, 8, 1)])
def test_cores(allowed: int, physical: int | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(allowed)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    assert num_cores() == expected


def test_windows_needs_no_module_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    peak_memory = runpy.run_path(hardware.__file__)["peak_memory"]
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda process: SimpleNamespace(peak_wset=7))
    assert peak_memory(torch.device("cpu")) == 7


def test_precisions_that_a_cpu_lacks_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    check_precision(torch.device("cuda"), "fp16")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    check_precision(torch.device("cpu"), "bf16")
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    for precision in ("fp16", "bf16"):
        with pytest.raises(ValueError, match=f"`mixed_precision` is {precision}"):
            check_precision(torch.device("cpu"), precision)
