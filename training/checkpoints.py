# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
How a run stops and resumes: requests to stop, and checkpoints.

One checkpoint is one safetensors file, named by its step: weights, their moving average, AdamW's moments and the losses
so far as tensors, the rest as JSON in the metadata. No learning rate, data position or random state is stored: all are
functions of the step and the seed.
"""

import json
import logging
import shutil
import signal
import zlib
from collections.abc import Iterator
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

OptimizerState = dict[nn.Parameter, dict[str, torch.Tensor]]  # by weight, as in `Optimizer.state`
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class StopRequest:
    """
    A context that remembers SIGTERM (a scheduler) or SIGINT (Ctrl-C), to be answered between two steps.

    A second SIGINT interrupts as usual. SIGTERM may come several times, from a scheduler and from a launcher that
    passes it on, while the checkpoint is being written: more of them change nothing.

    Attributes:
        signal: Number of the signal that came, 0 before.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> "StopRequest":
        self._handlers = {number: signal.signal(number, self._remember) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, self._handlers[signal.SIGINT])


@dataclass
class Checkpoint:
    """The content of a checkpoint: tensors by name, and `metadata` (JSON)."""

    path: Path
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], keep: int
) -> Path:
    """
    Write `checkpoint-STEP.safetensors` atomically, and then remove all older ones but `keep` - 1.

    Raises an `OSError` if it cannot be written, for instance to a full disk. All older ones are kept then.
    """
    path = folder / f"checkpoint-{step:08d}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata={"checksum": _checksum(tensors), "state": json.dumps(metadata)})
    except (SafetensorError, OSError) as error:
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise OSError(
            f"{path} could not be written: {error}. It needs {size:,} bytes; {shutil.disk_usage(folder).free:,} are "
            "free. The checkpoints before it are whole: make room, and give the same command again."
        ) from error
    older = [other for other in reversed(checkpoints_in(folder)) if other.name < path.name]
    for other in older[keep - 1 :]:
        other.unlink()
    return path


def load_newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None. Damaged ones are skipped with a warning."""
    for path in reversed(checkpoints_in(folder)):
        try:
            return _load(path)
        except (SafetensorError, ValueError, OSError) as error:
            logger.warning("Skipping the damaged checkpoint %s: %s", path, error)
    return None


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(folder.glob("checkpoint-????????.safetensors"))


@contextmanager
def set_old_run_aside(folder: Path) -> Iterator[None]:
    """
    Keep an old run in `replaced/` while the run that replaces it is prepared, then remove it.

    If an error prevents the new run, the old one is moved back.
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


def _load(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    if _checksum(tensors) != header.get("checksum"):
        raise ValueError("its content does not fit its checksum.")
    return Checkpoint(path, tensors, json.loads(header["state"]))


def _checksum(tensors: dict[str, torch.Tensor]) -> str:
    """Return the CRC-32 of all tensors: safetensors notices a truncated file, but not a flipped bit."""
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), checksum)
    return f"{checksum:08x}"


def training_state(
    model: nn.Module, average: dict[str, torch.Tensor], optimizer_state: OptimizerState
) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Yield everything that training has changed: `weights.NAME`, `average.NAME`, and AdamW's state of NAME.

    Tensors are complete, also if they are sharded. All processes must iterate at once.
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
    """Load what `training_state` gave into a model of the same shape, which may be sharded differently."""
    for name, weight in model.named_parameters():
        for prefix, tensor in (("weights", weight), ("average", average[name])):
            tensor.copy_(shard_like(tensors[f"{prefix}.{name}"], tensor))
        state = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
        if state:
            optimizer_state[weight] = {key: shard_like(value, weight) for key, value in state.items()}
