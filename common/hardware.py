# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The machine: cores, speed, memory, and versions of libraries."""

import ctypes
import os
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")


class GPU(NamedTuple):
    """Peak FLOPS in bfloat16 and float16 with float32 accumulation and without sparsity, and memory in GB."""

    peak_flops: float
    memory: float


# From NVIDIA's data sheets. (Some data sheets list the peak with sparsity, which is twice as high.) The keys are full
# names, because variants of a GPU and MIG slices differ.
GPUS = {
    "NVIDIA A100-SXM4-40GB": GPU(312e12, 40),
    "NVIDIA A100-SXM4-80GB": GPU(312e12, 80),
    "NVIDIA A100-PCIE-40GB": GPU(312e12, 40),
    "NVIDIA A100 80GB PCIe": GPU(312e12, 80),
    "NVIDIA H100 80GB HBM3": GPU(989.4e12, 80),  # SXM
    "NVIDIA H100 PCIe": GPU(756e12, 80),
    "NVIDIA H200": GPU(989.4e12, 141),
    "NVIDIA H800": GPU(989.4e12, 80),
    "NVIDIA H20": GPU(148e12, 96),
    "NVIDIA B200": GPU(2250e12, 180),
    "NVIDIA L40S": GPU(362e12, 48),
    "NVIDIA GeForce RTX 4090": GPU(165.2e12, 24),
}


def num_cores() -> int:
    """Return the number of CPU cores that this process may use, at most the number of physical cores (if known)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if find_spec("psutil") is None:  # it comes with Accelerate
        return allowed
    import psutil

    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def device_name(device: torch.device) -> str:
    """Return the name of a GPU or, for other devices, of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")  # on Linux, platform.processor() gives no model name
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def default_device() -> torch.device:
    """Return the GPU, or the CPU if PyTorch has no CUDA device."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def hardware(accelerator: Any) -> dict[str, Any]:
    """Return the device, number of processes and precision of a run with an `accelerate.Accelerator`."""
    device = accelerator.device
    return {
        "device": device.type,
        "device_name": device_name(device),
        "num_processes": accelerator.num_processes,
        "num_threads": torch.get_num_threads(),
        "mixed_precision": accelerator.mixed_precision,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages in `PACKAGES`, by name."""
    return {"python": platform.python_version()} | {one: metadata.version(one) for one in PACKAGES if find_spec(one)}


def check_precision(device: torch.device, mixed_precision: str) -> None:
    """Raise a `ValueError` for fp16 on a CPU, and for bf16 on an x86 CPU without bfloat16 instructions.

    Accelerate 1.15 ignores fp16 on a CPU. Emulation of bfloat16 is up to 100 times slower.
    """
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    is_slow = mixed_precision == "bf16" and is_x86 and not torch.cpu._is_avx512_bf16_supported()
    if device.type == "cpu" and (mixed_precision == "fp16" or is_slow):
        raise ValueError(f"`mixed_precision` is {mixed_precision}, which this CPU lacks. Set `--mixed_precision no`.")


def peak_flops(device: torch.device, mixed_precision: str) -> float | None:
    """Return the peak FLOPS of a GPU in 16-bit precision (see `GPUS`), or None if not known."""
    if device.type != "cuda" or mixed_precision not in ("bf16", "fp16"):
        return None
    return getattr(GPUS.get(torch.cuda.get_device_name(device)), "peak_flops", None)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory so far in bytes: of all tensors on a GPU, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if os.name == "nt":  # Windows has no module `resource`
        import psutil  # it comes with Accelerate

        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next allocation, instead of returning it to the system.

    By default, glibc, the C library of Linux, returns large blocks at once. In each training step on a CPU, the system
    must then provide and clear new pages. With other C libraries, this function does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt, largest = ctypes.CDLL(None).mallopt, 2**31 - 1
    mallopt(-3, largest)  # M_MMAP_THRESHOLD: allocate all blocks from the heap
    mallopt(-1, largest)  # M_TRIM_THRESHOLD: never shrink the heap
    mallopt(-2, 2**28)  # M_TOP_PAD: grow the heap in steps of 256 MiB
