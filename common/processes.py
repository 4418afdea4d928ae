# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Helpers for runs that use several processes, on one or several machines."""

import atexit
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import gather_object
from torch import distributed

from common.files import read_yaml
from common.hardware import num_cores


def start_accelerator(**options: Any) -> Accelerator:
    """
    Return an `Accelerator`, and let PyTorch use all CPU cores.

    Raises:
        ValueError: If the launched processes are not connected, or if the launch file is for GPUs, but there is none.
    """
    launcher = launcher_options()
    if launcher is not None and not launcher.cpu and not torch.accelerator.is_available():
        check_needs_no_gpu(launcher.config_file)
    accelerator = Accelerator(cpu=must_use_cpu(), **options)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but Accelerate has connected only {accelerator.num_processes}. "
            "Launch them with torchrun, or with `accelerate launch` and a file of training/accelerate/."
        )
    if launcher is not None and accelerator.device.type == "cpu" and launcher.num_cpu_threads_per_process is None:
        torch.set_num_threads(max(num_cores() // accelerator.num_processes, 1))
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


def launcher_options() -> Namespace | None:
    """
    Return the options of the parent process if it is `accelerate launch`, otherwise None.

    If `num_cpu_threads_per_process` is None, the user has not set OMP_NUM_THREADS either, and the launcher has set it
    to 1.
    """
    try:
        launcher = psutil.Process(os.getppid())
        command, environment = launcher.cmdline(), launcher.environ()
    except psutil.Error:
        return None
    if "ACCELERATE_MIXED_PRECISION" not in os.environ or "launch" not in command:
        return None
    options, _ = launch_command_parser().parse_known_args(command[command.index("launch") + 1 :])
    if options.num_cpu_threads_per_process is None and "OMP_NUM_THREADS" in environment:
        options.num_cpu_threads_per_process = environment["OMP_NUM_THREADS"]
    return options


def check_needs_no_gpu(launch_file: str | None) -> None:
    """Raise a `ValueError` if a configuration file of Accelerate says that the run does not use the CPU."""
    if launch_file is not None and read_yaml(Path(launch_file)).get("use_cpu") is False:
        raise ValueError(
            f"{launch_file} has `use_cpu: false`, but PyTorch finds no GPU or other accelerator. Use "
            "training/accelerate/cpu.yaml or cpus.yaml, or correct the drivers or the installation of PyTorch."
        )


@contextmanager
def together(accelerator: Accelerator) -> Iterator[None]:
    """
    Run a block, and wait at its end until all processes have run it. If it fails in one process, the others exit.

    Collectives on GPUs time out after ten minutes, which is too short if one process writes files or generates texts
    while the others wait. This function therefore waits in a group on the CPU.
    """
    error = None
    try:
        yield
    except BaseException as raised:
        error = raised
    if accelerator.num_processes > 1:
        has_failed: list[bool] = [False] * accelerator.num_processes
        distributed.all_gather_object(has_failed, error is not None, cpu_group())
    if error is not None:
        raise error
    if accelerator.num_processes > 1 and any(has_failed):
        sys.exit(1)


@cache
def cpu_group() -> distributed.ProcessGroup:
    """Return a group of all processes that communicates on the CPU (Gloo) with a time limit of seven days."""
    return distributed.new_group(backend="gloo", timeout=timedelta(days=7))


@contextmanager
def in_turn(accelerator: Accelerator) -> Iterator[None]:
    """
    Run a block first in the main process, then in one process of each other machine, then in all other processes.

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
