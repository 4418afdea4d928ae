# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: the weights, their moving averages, AdamW's moments, all losses, and other data as JSON.

A checkpoint is a safetensors file. If the weights are sharded (FSDP2), it is a folder of torch.distributed.checkpoint
instead, to which every process writes its shards as safetensors. A run can be resumed from both kinds with any number
of processes. Learning rates, the order of the data and random numbers depend only on the step and the seed.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as dcp
from transformers import AutoConfig, AutoModel

from common.files import atomic_file, free_space, publish_folder, remove_atomically, temporary_path, write_json
from common.processes import cpu_group
from modeling_aogpt.loading import Model
from training.arguments import TrainingArguments
from training.lora import add_lora, check_base
from training.optimization import trainable_weights
from training.sharding import local_part, shard_like

logger = logging.getLogger(__name__)

OptimizerState = dict[nn.Parameter, dict[str, torch.Tensor]]  # the type of `Optimizer.state`
STATE_FILE = "state.json"  # in the folder of a sharded checkpoint


@dataclass
class Checkpoint:
    """Checkpoint after `step` steps: its data without the tensors, and the names of the tensors."""

    path: Path
    step: int
    metadata: dict[str, Any]
    names: set[str]

    def read(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the tensors with these names from the checkpoint, in place. Raise an `OSError` if it cannot be read."""
        try:
            if self.path.is_dir():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # the warning that a single process is assumed
                    dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(self.path)), no_dist=True)
                return
            with safe_open(self.path, framework="pt") as file:
                for name, tensor in tensors.items():
                    tensor.copy_(shard_like(file.get_tensor(name), tensor))
        except (SafetensorError, OSError, dcp.CheckpointException) as error:
            raise OSError(
                f"{self.path} could not be read. If its run has removed it, use a newer one. (Cause: {_cause(error)})"
            ) from error


@dataclass
class CheckpointWriter:
    """Writer of the checkpoints of a run.

    A checkpoint becomes visible when it is complete. Older checkpoints are then removed, except for the newest `keep` -
    1, and for milestones.
    """

    folder: Path
    keep: int
    is_milestone: Callable[[int], bool] = lambda step: False  # whether the checkpoint of a step must not be removed now

    def save(self, step: int, tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Path:
        """Write `checkpoint-STEP.safetensors`. Raise an `OSError` if this fails."""
        path = self.folder / f"checkpoint-{step:08d}.safetensors"
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with self._describe_errors(path), atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata={"state": json.dumps(metadata)})
        self.remove_older(path)
        return path

    def save_shards(self, step: int, tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Path:
        """Write the folder `checkpoint-STEP`. All processes must call this together. If one fails, all of them fail."""
        path = self.folder / f"checkpoint-{step:08d}"
        writer = _FolderWriter(path, metadata, lambda: self.remove_older(path))
        with self._describe_errors(path):
            dcp.save(tensors, storage_writer=writer, process_group=cpu_group())
        return path

    def remove_older(self, newest: Path) -> None:
        """Remove checkpoints older than `newest` (see the class), and a checkpoint of its step in the other format."""
        step, paths = step_of(newest), [path for path in reversed(checkpoints_in(self.folder)) if path != newest]
        older = [path for path in paths if step_of(path) < step]
        removed = [path for path in older[self.keep - 1 :] if not self.is_milestone(step_of(path))]
        for path in [*removed, *(path for path in paths if step_of(path) == step)]:
            try:
                remove_atomically(path)
            except OSError as error:  # the new checkpoint is complete, so training can continue
                left = path if path.exists() else temporary_path(path)  # `remove_atomically` renames it first
                logger.warning("The old checkpoint %s could not be removed. Remove it yourself. (%s)", left, error)

    @contextmanager
    def _describe_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError, dcp.CheckpointException) as error:
            raise OSError(
                f"{path} could not be written: {_cause(error)} ({free_space(path):,} bytes are free). Older "
                "checkpoints are intact. Free disk space or correct the permissions, and run the same command again."
            ) from error


# `check_sharding` refuses PyTorch before 2.9, which cannot write shards as safetensors.
StorageWriter = getattr(dcp, "HuggingFaceStorageWriter", dcp.FileSystemWriter)


class _FolderWriter(StorageWriter):
    """Writer of a checkpoint folder. The folder is renamed to `path` when all processes have written their files."""

    def __init__(self, path: Path, state: dict[str, Any], on_finish: Callable[[], None]) -> None:
        super().__init__(str(temporary_path(path)), save_distributed=True)
        self._path, self._state, self._on_finish = path, state, on_finish

    def finish(self, metadata: dcp.Metadata, results: list[Any]) -> None:
        """Complete the checkpoint in the main process. Raise an error if the files of other processes are missing."""
        super().finish(metadata, results)
        names = {written.storage_data.relative_path for process in results for written in process}
        sizes = {name: os.path.getsize(self.path / name) for name in sorted(names)}
        write_json(self.path / STATE_FILE, {"state": self._state, "sizes": sizes})
        publish_folder(self.path, self._path)
        self._on_finish()


def valid_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Yield valid checkpoints of a run, newest first. Warn of damaged ones; if all are damaged, raise an `OSError`."""
    paths, damaged = checkpoints_in(folder), []
    for path in reversed(paths):
        try:
            yield load_checkpoint(path)
        except ValueError as error:
            logger.warning("Skipping a damaged checkpoint: %s", error)
            damaged.append(path.name)
    if paths and len(damaged) == len(paths):
        raise OSError(f"All checkpoints in {folder} are damaged: {', '.join(damaged)}. To start anew, remove them.")


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.stem.removeprefix("checkpoint-"))


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints of a run, oldest first."""
    name = f"checkpoint-{'[0-9]' * 8}"
    return sorted([*folder.glob(name), *folder.glob(f"{name}.safetensors")])


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raise a `ValueError` if it is damaged: files are missing or shorter than they were."""
    try:
        if path.is_dir():
            content = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
            if any(os.path.getsize(path / name) != size for name, size in content["sizes"].items()):
                raise ValueError("its files have other sizes than when they were written")
            metadata = content["state"]
            names = set(dcp.HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata)
        else:
            with safe_open(path, framework="pt") as file:  # compares the size of the file with its header
                metadata, names = json.loads((file.metadata() or {})["state"]), set(file.keys())
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged or removed. Use another checkpoint. (Cause: {error})") from error
    return Checkpoint(path, step_of(path), metadata, names)


def _cause(error: BaseException) -> BaseException:
    """Return the error of the first process that failed. If `error` does not combine several errors, return it."""
    return next(iter(error.failures.values()))[0] if isinstance(error, dcp.CheckpointException) else error


def training_state(
    model: nn.Module, average: dict[str, torch.Tensor], optimizer_state: OptimizerState
) -> dict[str, torch.Tensor]:
    """Return the weights, moving averages and AdamW states. The keys are the names of tensors in a checkpoint."""
    tensors = {}
    for name, weight in trainable_weights(model).items():
        state = {"weights": weight.detach(), "average": average[name], **optimizer_state.get(weight, {})}
        tensors |= {f"{key}.{name}": tensor for key, tensor in state.items()}
    return tensors


@torch.no_grad()
def load_state(
    checkpoint: Checkpoint, model: nn.Module, average: dict[str, torch.Tensor], optimizer_state: OptimizerState
) -> None:
    """Load the tensors of a checkpoint into the weights, `average` and `optimizer_state`. The sharding may differ."""
    for name, weight in trainable_weights(model).items():
        if f"step.{name}" in checkpoint.names:
            moments = {key: torch.zeros_like(weight.detach()) for key in ("exp_avg", "exp_avg_sq")}
            optimizer_state[weight] = {"step": local_part(weight).new_zeros(()), **moments}
    checkpoint.read(training_state(model, average, optimizer_state))


def load_checkpoint_model(checkpoint: Checkpoint, weights: str = "average") -> Model | PeftModel:
    """Return the model of a checkpoint with the moving averages (`"average"`) or the latest weights (`"weights"`)."""
    training = TrainingArguments.from_settings(checkpoint.metadata.get("settings", {}))
    if training.lora_rank:
        check_base(training, checkpoint.metadata)
    config = dict(checkpoint.metadata["config"])
    with torch.device("meta"):  # an adapter does not contain the weights of the initial model
        model = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
        saved = add_lora(model, training) if training.lora_rank else model
    model.generation_config = model.generation_config.from_dict(checkpoint.metadata["generation_config"])
    tensors = {name: torch.empty_like(weight, device="cpu") for name, weight in trainable_weights(model).items()}
    checkpoint.read({f"{weights}.{name}": tensor.detach() for name, tensor in tensors.items()})
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return saved.eval()
