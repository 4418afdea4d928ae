# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training runs that are killed and resumed, and comparisons with an uninterrupted run, bit for bit."""

import math
import multiprocessing
import os
import random
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from common.results import read_results
from training import pretrain
from training.checkpoints import checkpoints_in
from training.status import StepStatus

MAX_DELAY = 0.03  # largest number of seconds from a step to the kill; a step with its checkpoint takes about as long


@dataclass
class Attempt:
    """
    One part of a run, from its start (or from a checkpoint) until it ends or is killed.

    Attributes:
        losses: Losses, by step.
        killed: Whether it was killed.
    """

    losses: dict[int, float]
    killed: bool


def record_and_train(argv: list[str], log: Path, environment: dict[str, str], kind: type[pretrain.Pretraining]) -> None:
    """
    Run training/pretrain.py, or the command of another `kind` of run, in this process.

    After each step, append the number of the step and its loss to `log`. Append stderr to a file next to `log`.
    """
    os.environ.update(environment)
    with open(log.with_suffix(f".{os.environ.get('RANK', '0')}.stderr"), "a") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    finish_step = pretrain.Pretraining.finish_step

    def record_step(run: pretrain.Pretraining, status: StepStatus) -> int:
        stop_signal = finish_step(run, status)
        if run.accelerator.is_main_process:
            with log.open("a") as file:
                file.write(f"{status.step} {run.progress.losses[-1].hex()}\n")
        return stop_signal

    pretrain.Pretraining.finish_step = record_step
    pretrain.main(argv, kind)


def read_losses(log: Path) -> dict[int, float]:
    """Return the losses in `log`, by step. Ignore an incomplete last line, which a kill can leave."""
    lines = [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {int(step): float.fromhex(loss) for step, loss in lines}


class Trainer:
    """
    Launcher of runs in new processes.

    The processes are forked from a server process that has already imported the training code, so they start quickly.
    """

    def __init__(
        self, argv: list[str], num_processes: int = 1, kind: type[pretrain.Pretraining] = pretrain.Pretraining
    ) -> None:
        self.argv, self.num_processes, self.kind = argv, num_processes, kind
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["training.pretrain"])

    def attempt(self, output_dir: Path, kill_after: tuple[int, float] | None = None) -> Attempt:
        """
        Start or resume the run in `output_dir`, and wait until it ends, or kill it with `kill -9`.

        `kill_after` is a step and a number of seconds. The run is killed this number of seconds after this step. By
        default, the run is not killed.
        """
        output_dir.mkdir(parents=True, exist_ok=True)
        log = output_dir.with_suffix(".losses")
        log.write_text("")
        processes = self._start([*self.argv, f"--output_dir={output_dir}"], log)
        step, seconds = kill_after or (math.inf, 0.0)
        while any(process.is_alive() for process in processes):
            if max(read_losses(log), default=-1) >= step:
                time.sleep(seconds)
                break
            if any(process.exitcode for process in processes):
                break  # one process failed, so the others are killed, as torchrun does
            time.sleep(0.002)
        killed = any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes)
        children = [child for process in processes for child in _find_children(process.pid)]
        for process in processes:
            process.kill()
            process.join()
        _, remaining = psutil.wait_procs(children, timeout=60)
        if remaining:
            raise RuntimeError(f"Some processes of the killed run are still running: {remaining}. End these processes.")
        if not killed and any(process.exitcode for process in processes):
            raise RuntimeError(f"The run failed. See its error message in {log.with_suffix('.0.stderr')}.")
        return Attempt(read_losses(log), killed)

    def _start(self, argv: list[str], log: Path) -> list[ForkServerProcess]:
        environments = [{}]
        if self.num_processes > 1:
            # As with torchrun, the store is in this process, which chooses a free port.
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port)}
            agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
            environments = [
                {"RANK": str(rank), "LOCAL_RANK": str(rank), **address, **agent}
                | {"WORLD_SIZE": str(self.num_processes), "LOCAL_WORLD_SIZE": str(self.num_processes)}
                for rank in range(self.num_processes)
            ]
        processes = [
            self.context.Process(target=record_and_train, args=(argv, log, environment, self.kind))
            for environment in environments
        ]
        for process in processes:
            process.start()
        return processes


def _find_children(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process, or an empty list if the process has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def run_with_kills(trainer: Trainer, output_dir: Path, kills: int, num_steps: int, seed: int) -> list[Attempt]:
    """Divide a run into `kills` equal parts, kill it at a random moment of each part, and then let it finish."""
    rng = random.Random(seed)
    borders = [num_steps * part // kills for part in range(kills + 1)]
    attempts = [
        trainer.attempt(output_dir, (rng.randrange(first, end), rng.uniform(0, MAX_DELAY)))
        for first, end in pairwise(borders)
    ]
    return [*attempts, trainer.attempt(output_dir)]


def find_differences(expected: Path, actual: Path) -> list[str]:
    """Return the names of the tensors and results that differ, by at least one bit, between two finished runs."""
    states = [load_file(checkpoints_in(folder)[-1]) for folder in (expected, actual)]
    results = [read_results(folder) for folder in (expected, actual)]
    names = sorted(states[0].keys() | states[1].keys())
    unequal = [
        name for name in names if not all(name in state for state in states) or not _have_same_bits(name, *states)
    ]
    for result in results:
        for evaluation in result["evaluations"]:
            evaluation.pop("seconds", None)
    return unequal + [key for key in ("steps", "loss_curve", "evaluations") if results[0][key] != results[1][key]]


def _have_same_bits(name: str, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    a, b = (state[name].reshape(-1).view(torch.uint8) for state in (one, other))
    return one[name].dtype == other[name].dtype and torch.equal(a, b)


def find_wrong_losses(expected: dict[int, float], attempts: list[Attempt]) -> list[int]:
    """
    Return the steps at which any attempt computed another loss than the uninterrupted run.

    This includes steps after the last checkpoint of a killed attempt, which the next attempt repeats.
    """
    return sorted({step for attempt in attempts for step, loss in attempt.losses.items() if loss != expected[step]})
