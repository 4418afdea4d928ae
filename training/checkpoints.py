# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Checkpoints that a run is resumed from.

One checkpoint is one safetensors file, named by its step: weights, their moving average, AdamW's moments and the losses
so far as tensors, the rest as JSON in the metadata. No learning rate, data position or random state is stored: all are
functions of the step and the seed.
"""

import json
import logging
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from training.files import whole_file
from training.sharding import spread_like, whole_tensor

logger = logging.getLogger(__name__)

OptimizerState = dict[nn.Parameter, dict[str, torch.Tensor]]  # by weight, as in `Optimizer.state`
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Checkpoint:
    """What a file held: tensors by name, and `metadata` (JSON)."""

    path: Path
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, Any]


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], keep: int
) -> Path:
    """
    Writes `checkpoint-STEP.safetensors`, whole or not at all, and then removes all older ones but `keep` - 1.

    Raises an `OSError` if it cannot be written, for instance to a full disk; the older ones all stay then.
    """
    path = folder / f"checkpoint-{step:08d}.safetensors"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with whole_file(path) as temporary:
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
    """The newest checkpoint that is whole; the damaged ones before it are passed over with a warning. None: no such."""
    for path in reversed(checkpoints_in(folder)):
        try:
            return _load(path)
        except (SafetensorError, ValueError, OSError) as error:
            logger.warning("Passing over the damaged checkpoint %s: %s", path, error)
    return None


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted(folder.glob("checkpoint-????????.safetensors"))


@contextmanager
def old_run_aside(folder: Path) -> Iterator[None]:
    """
    Keeps what is there of a run in `replaced/` while the one that takes its place is made ready. When it is, that goes;
    if an error keeps it from that, it comes back.
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
    """CRC-32 of all tensors: safetensors sees a file that was cut short, but not a flipped bit."""
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy(), checksum)
    return f"{checksum:08x}"


def training_state(
    model: nn.Module, average: dict[str, torch.Tensor], optimizer_state: OptimizerState
) -> Iterator[tuple[str, torch.Tensor]]:
    """
    Everything that training has changed: `weights.NAME`, `average.NAME`, and AdamW's state of NAME.

    Tensors come one by one and whole, however many processes share them; all must ask for them at once.
    """
    for name, weight in model.named_parameters():
        state = {"weights": weight.detach(), "average": average[name], **optimizer_state.get(weight, {})}
        for key, tensor in state.items():
            yield f"{key}.{name}", whole_tensor(tensor)


@torch.no_grad()
def restore_state(
    tensors: dict[str, torch.Tensor],
    model: nn.Module,
    average: dict[str, torch.Tensor],
    optimizer_state: OptimizerState,
) -> None:
    """Undoes `training_state`, in place. The model must have the shape that it had then, but may be cut otherwise."""
    for name, weight in model.named_parameters():
        for prefix, tensor in (("weights", weight), ("average", average[name])):
            tensor.copy_(spread_like(tensors[f"{prefix}.{name}"], tensor))
        state = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
        if state:
            optimizer_state[weight] = {key: spread_like(value, weight) for key, value in state.items()}
