# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""One run in several processes, on one machine or more."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import distributed

from common.hardware import num_cores

PATIENCE = timedelta(days=7)


def start_accelerator(**options: Any) -> Accelerator:
    """
    Return the `Accelerator` of this process, with all CPU cores in use.

    Args:
        options: Of `Accelerator`.

    Raises:
        ValueError: If processes were launched that are not connected. All of them would write the same run.
    """
    accelerator = Accelerator(cpu=must_use_cpu(), **options)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but Accelerate knows of {accelerator.num_processes}. Launch them "
            "with a file of training/accelerate/, or by torchrun: each needs RANK, LOCAL_RANK and WORLD_SIZE."
        )
    use_all_cores(accelerator)
    return accelerator


def must_use_cpu() -> bool:
    """
    Return whether Accelerate must be told to use the CPU: for several processes without an accelerator, and on Apple's
    GPUs, which have no float64.
    """
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator().type == "mps"
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def use_all_cores(accelerator: Accelerator) -> None:
    """
    Undo the OMP_NUM_THREADS=1 that `accelerate launch` sets on a CPU if nobody has set another value.

    Other values, and `python` without a launcher, are left alone.
    """
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(max(num_cores() // accelerator.num_processes, 1))


@contextmanager
def in_turn(accelerator: Accelerator) -> Iterator[None]:
    """
    Run a block first in the main process, then in one process of each other machine, then in the rest.

    The later ones find in their machine's cache what the first ones made. Accelerate's `main_process_first` gives up
    after ten minutes on GPUs, which is too short to tokenize a large corpus. Here the processes wait in a CPU group. If
    the block fails in one process, the others exit without a message of their own.
    """
    if accelerator.num_processes == 1:
        yield
        return
    group = distributed.new_group(backend="gloo", timeout=PATIENCE)
    own_turn = 0 if accelerator.is_main_process else 1 if accelerator.is_local_main_process else 2
    for turn in range(3):
        error = None
        if turn == own_turn:
            try:
                yield
            except BaseException as raised:
                error = raised
        has_failed: list[bool] = [False] * accelerator.num_processes
        distributed.all_gather_object(has_failed, error is not None, group)
        if error is not None:
            raise error
        if any(has_failed):
            sys.exit(1)


def check_alike(accelerator: Accelerator, **found: Any) -> None:
    """
    Raise a `ValueError` in all processes if one has found something else than the main process.

    Machines that do not see the same files would train different models and add up their gradients.
    """
    expected, *others = gather_object([found])
    for process, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != expected[name]:
                raise ValueError(
                    f"Process {process} finds another {name} than process 0: {value}, not {expected[name]}. Every "
                    "machine must see the same output_dir and the same corpus."
                )
