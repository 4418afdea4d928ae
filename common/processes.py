# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Helpers for runs that use several processes, on one or several machines."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import distributed


def start_accelerator(**options: Any) -> Accelerator:
    """Return an `Accelerator`.

    Raise a `ValueError` if `accelerate launch` is configured for GPUs, but there is no accelerator, or if the launcher
    has not connected its processes.
    """
    given = {name: os.environ.get(f"ACCELERATE_{name.upper()}", "no") for name in ("mixed_precision", "dynamo_backend")}
    uses_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" or torch.accelerator.is_available()
    if not uses_cpu and (wrong := [f"`{name}: {value}`" for name, value in given.items() if value.lower() != "no"]):
        raise ValueError(
            f"`accelerate launch` is configured for GPUs ({', '.join(wrong)}), but PyTorch finds no GPU or other "
            "accelerator. Use training/accelerate/cpu.yaml or cpus.yaml, or reinstall drivers or PyTorch."
        )
    accelerator = Accelerator(cpu=must_use_cpu(), **options)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but Accelerate has connected only {accelerator.num_processes}. "
            "Launch them with torchrun, or with `accelerate launch` and a file of training/accelerate/."
        )
    atexit.register(close_process_groups)
    return accelerator


def close_process_groups() -> None:
    """Close the process groups. Otherwise, a Gloo thread may free tensors while Python exits, which aborts it."""
    if distributed.is_initialized():
        if cpu_group.cache_info().currsize:
            distributed.destroy_process_group(cpu_group())
        if distributed.get_backend() == "gloo":  # NCCL would wait for processes that have failed
            distributed.destroy_process_group()
    cpu_group.cache_clear()


def must_use_cpu() -> bool:
    """Return True on MPS, which does not support float64, and for several processes without accelerators."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator().type == "mps"
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def together(accelerator: Accelerator) -> Iterator[None]:
    """Run a block, and wait at its end until all processes have run it. If it fails in one process, the others exit.

    The processes wait in a group on the CPU: collectives on GPUs time out after ten minutes, which may be too short.
    """
    error = None
    try:
        yield
    except BaseException as raised:
        error = raised
    has_failed = gather(error is not None, accelerator.num_processes)
    if error is not None:
        raise error
    if any(has_failed):
        sys.exit(1)


def gather(value: Any, num_processes: int) -> list[Any]:
    """Return the values of all processes, in the order of the processes. They wait for each other as in `together`."""
    values = [value] * num_processes
    if num_processes > 1:
        distributed.all_gather_object(values, value, group=cpu_group())
    return values


@cache
def cpu_group() -> distributed.ProcessGroup:
    """Return a group of all processes that communicates on the CPU (Gloo) with a time limit of seven days."""
    return distributed.new_group(backend="gloo", timeout=timedelta(days=7))


@contextmanager
def in_turn(accelerator: Accelerator) -> Iterator[None]:
    """Run a block first in the main process, then in one process of each other machine, then in all other processes.

    Later processes can then use the files that earlier processes have cached. They wait as in `together`.
    """
    own_turn = 0 if accelerator.is_main_process else 1 if accelerator.is_local_main_process else 2
    for turn in range(3):
        with together(accelerator):
            if turn == own_turn:
                yield


def check_same_everywhere(**values: Any) -> None:
    """Raise a `ValueError` in all processes if a value is not the same in all of them."""
    expected, *others = gather_object([values])
    for process, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != expected[name]:
                raise ValueError(
                    f"`{name}` is {value} in process {process}, but {expected[name]} in process 0. Use the same "
                    "`output_dir` and the same corpus on every machine."
                )
