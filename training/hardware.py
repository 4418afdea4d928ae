# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The machine and the libraries of a run."""

import ctypes
import os
import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import psutil
import torch
from accelerate import Accelerator

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")


def num_cores() -> int:
    """Cores that this process may use; hyper-threads are not counted where the system tells."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


def use_all_cores(accelerator: Accelerator) -> None:
    """
    Undoes what `accelerate launch` does to a CPU: it sets OMP_NUM_THREADS=1 where nobody has set it.

    Any other value, and `python` without a launcher, are left alone.
    """
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(max(num_cores() // accelerator.num_processes, 1))


def return_freed_memory() -> None:
    """
    Has the C library give freed tensors back to the system, where it is glibc.

    It keeps those of up to 32 MiB in holes between tensors that live longer, as activations do: after the forward pass
    of AO-GPT small with selective checkpointing, half a gigabyte.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def share_cpus() -> bool:
    """
    Whether Accelerate is to be told to take CPUs: for several processes where there is nothing else, and instead of
    Apple's GPUs, which have no float64.
    """
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator().type == "mps"
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_launch(accelerator: Accelerator) -> None:
    """
    Raises a `ValueError` if processes were launched that do not know of each other, and would all write the same run.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but Accelerate knows of {accelerator.num_processes}. Launch them "
            "with a file of training/accelerate/, or by torchrun: each needs RANK, LOCAL_RANK and WORLD_SIZE."
        )


def hardware(accelerator: Accelerator) -> dict[str, Any]:
    device = accelerator.device
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "num_processes": accelerator.num_processes,
        "num_threads": torch.get_num_threads(),
        "num_cores": num_cores(),
        "mixed_precision": accelerator.mixed_precision,
    }


def versions() -> dict[str, str]:
    """Of Python and of those `PACKAGES` that are installed: not every command needs all."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES if find_spec(name) is not None},
    }
