# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Checkpoints of a run, and handling of the signals that stop a run.

A checkpoint is a safetensors file with the weights, the moving averages of the weights, AdamW's moments and all losses.
All other data of the checkpoint is JSON in the metadata of the file. The learning rate, the order of the data and
random numbers are not stored, because they depend only on the step and the seed.
"""

import json
import logging
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from common.files import atomic_file
from training.sharding import full_tensor, shard_like

logger = logging.getLogger(__name__)

OptimizerState = dict[nn.Parameter, dict[str, torch.Tensor]]  # the type of `Optimizer.state`
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class StopRequest:
    """
    Context manager that records SIGTERM (from a scheduler) or SIGINT (Ctrl-C), so that a run can stop between steps.

    A second SIGINT interrupts the run immediately. Further SIGTERMs do not, because a scheduler and a launcher may both
    send SIGTERM, and the second one may arrive while the checkpoint is being written.

    Attributes:
        signal: Number of the last signal, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> "StopRequest":
        self._handlers = {number: signal.signal(number, self._record) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, self._handlers[signal.SIGINT])


@dataclass
class Checkpoint:
    """Content of a checkpoint after `step` steps."""

    path: Path
    step: int
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, Any],
    keep: int,
    is_milestone: Callable[[int], bool] = lambda step: False,
) -> Path:
    """
    Write `checkpoint-STEP.safetensors` atomically. Then remove all older checkpoints except for the newest `keep` - 1.

    Milestones, given by a function of the step, are never removed. If the file cannot be written, for
    instance because the disk is full, older checkpoints are kept.
    """
    path = folder / f"checkpoint-{step:08d}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata={"checksum": _checksum(tensors), "state": json.dumps(metadata)})
    except (SafetensorError, OSError) as error:
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise OSError(
            f"{path} could not be written: {error}. The file needs {size:,} bytes; {shutil.disk_usage(folder).free:,} "
            "bytes are free. Older checkpoints are intact. Free disk space, and run the same command again."
        ) from error
    older = [other for other in reversed(checkpoints_in(folder)) if other.name < path.name]
    for other in older[keep - 1 :]:
        if not is_milestone(step_of(other)):
            other.unlink()
    return path


def load_newest_checkpoint(
    folder: Path, can_continue: Callable[[Checkpoint], bool] = lambda checkpoint: True
) -> Checkpoint | None:
    """
    Return the newest valid checkpoint for which `can_continue` returns True, or None.

    Damaged checkpoints are skipped with a warning.
    """
    for path in reversed(checkpoints_in(folder)):
        try:
            checkpoint = load_checkpoint(path)
        except ValueError as error:
            logger.warning("Skipping the damaged checkpoint %s", error)
            continue
        if can_continue(checkpoint):
            return checkpoint
    return None


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("checkpoint-"))


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints of a run, oldest first."""
    return sorted(folder.glob("checkpoint-????????.safetensors"))


@contextmanager
def set_old_run_aside(folder: Path) -> Iterator[None]:
    """
    Context manager that moves an old run to `replaced/` while the block prepares a new run in the same folder.

    After the block, the old run is removed. If the block fails, the old run is moved back.
    """
    aside = folder / "replaced"
    moved = {path: aside / path.name for path in (*checkpoints_in(folder), *folder.glob("results.json"))}
    for path, place in moved.items():
        aside.mkdir(exist_ok=True)
        path.replace(place)
    try:
        yield
    except BaseException:
        for path, place in moved.items():
            place.replace(path)
        if moved and not any(aside.iterdir()):
            aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raise a `ValueError` if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: {error}") from error
    if _checksum(tensors) != header.get("checksum"):
        raise ValueError(f"The tensors in {path} do not match the checksum in the metadata.")
    return Checkpoint(path, step_of(path), tensors, json.loads(header["state"]))


def _checksum(tensors: dict[str, torch.Tensor]) -> str:
    """Return the CRC-32 of all tensors. It detects changed bits; safetensors itself detects only truncated files."""
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), checksum)
    return f"{checksum:08x}"


def training_state(
    model: nn.Module, average: dict[str, torch.Tensor], optimizer_state: OptimizerState
) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Yield all tensors that training changes, with their names in a checkpoint.

    For each weight, these are `weights.NAME`, its moving average `average.NAME`, and its state in AdamW. Sharded
    tensors are gathered, so all processes must iterate together.
    """
    for name, weight in model.named_parameters():
        state = {"weights": weight.detach(), "average": average[name], **optimizer_state.get(weight, {})}
        for key, tensor in state.items():
            yield f"{key}.{name}", full_tensor(tensor)


@torch.no_grad()
def load_state(
    tensors: dict[str, torch.Tensor],
    model: nn.Module,
    average: dict[str, torch.Tensor],
    optimizer_state: OptimizerState,
) -> None:
    """Load the tensors of `training_state` into a model with the same shapes. The sharding may be different."""
    for name, weight in model.named_parameters():
        for prefix, tensor in (("weights", weight), ("average", average[name])):
            tensor.copy_(shard_like(tensors[f"{prefix}.{name}"], tensor))
        state = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
        if state:
            optimizer_state[weight] = {key: shard_like(value, weight) for key, value in state.items()}
