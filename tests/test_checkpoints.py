# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import logging
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp

from common.files import remove_incomplete
from common.processes import close_process_groups
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.training_runs import SHARDED
from training.arguments import TrainingArguments
from training.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    checkpoints_in,
    load_checkpoint,
    load_checkpoint_model,
    load_state,
    step_of,
    training_state,
    valid_checkpoints,
)
from training.optimization import ExponentialMovingAverage, create_optimizer
from training.status import StopRequest

TENSORS = {"weights.a": torch.arange(4, dtype=torch.bfloat16).view(2, 2), "losses": torch.tensor([1.5, 0.1 + 0.2])}

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def save(folder: Path, step: int, keep: int = 9) -> Path:
    return CheckpointWriter(folder, keep).save(step, TENSORS, {"progress": {"step": step}})


def read(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    tensors = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    checkpoint.read(tensors)
    return tensors


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


class Toy(nn.Module):
    """Model of two layers that share a weight, with an optimizer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.ema = ExponentialMovingAverage(self, 0.9)
        self.optimizer = create_optimizer(self, TrainingArguments())

    def train_steps(self, count: int) -> None:
        for step in range(count):
            generator = torch.Generator().manual_seed(step)
            self.second(self.first(torch.randn(5, 3, generator=generator))).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_checkpoints_are_read_back_exactly(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    checkpoint = next(valid_checkpoints(tmp_path), None)
    assert checkpoint.path == path
    assert checkpoint.metadata == {"progress": {"step": 3}}
    assert checkpoint.names == TENSORS.keys()
    for name, tensor in read(checkpoint).items():
        torch.testing.assert_close(tensor, TENSORS[name], rtol=0, atol=0)


@pytest.mark.parametrize("keep", [1, 2, 9])
def test_the_number_of_kept_checkpoints(tmp_path: Path, keep: int) -> None:
    assert next(valid_checkpoints(tmp_path), None) is None
    (tmp_path / "checkpoint-original").mkdir()  # of the user
    for step in range(1, 13):
        save(tmp_path, step, keep)
        assert [step_of(path) for path in checkpoints_in(tmp_path)] == list(range(1, step + 1))[-keep:]


def test_milestones_are_never_removed(tmp_path: Path) -> None:
    for step in range(1, 13):
        CheckpointWriter(tmp_path, 2, is_milestone=lambda step: step % 5 == 0).save(step, TENSORS, {})
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [5, 10, 11, 12]


def test_the_newest_checkpoint_is_the_first(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert [checkpoint.step for checkpoint in valid_checkpoints(tmp_path)] == [3, 2, 1]


@pytest.mark.parametrize("damage", [cut_short, empty])
def test_damaged_checkpoints_are_skipped_with_a_warning(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    with caplog.at_level(logging.WARNING):
        assert next(valid_checkpoints(tmp_path), None).metadata == {"progress": {"step": 1}}
    assert "damaged" in caplog.text
    assert "checkpoint-00000002.safetensors" in caplog.text


def test_it_is_an_error_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        cut_short(save(tmp_path, step))
    with pytest.raises(OSError, match=r"-00000002\S*, checkpoint-00000001\S*"):
        next(valid_checkpoints(tmp_path), None)


def test_a_full_disk_is_reported_and_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1, keep=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # limits the size of files
    try:
        with pytest.raises(OSError, match=r"0002.safetensors .*bytes are free"):
            CheckpointWriter(tmp_path, keep=1).save(2, {"weights.a": torch.ones(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.safetensors"]


def test_resumed_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = Toy(seed=0)
    whole.train_steps(3)
    with torch.no_grad():
        whole.ema.weights["first.weight"].fill_(7.0)
    CheckpointWriter(tmp_path, 1).save(3, training_state(whole, whole.ema.weights, whole.optimizer.state), {})
    resumed = Toy(seed=1)
    load_state(next(valid_checkpoints(tmp_path), None), resumed, resumed.ema.weights, resumed.optimizer.state)
    for toy in (whole, resumed):
        toy.train_steps(3)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert resumed.ema.weights["first.weight"].eq(7.0).all()
    assert "second.weight" not in resumed.ema.weights


def test_the_model_of_a_checkpoint_has_its_generation_config(tmp_path: Path, tiny_model: AOGPTForAnyOrderLM) -> None:
    tiny_model.generation_config.num_steps = 3
    metadata = {"config": tiny_model.config.to_dict(), "generation_config": tiny_model.generation_config.to_dict()}
    average = {name: weight.detach().clone() for name, weight in tiny_model.named_parameters()}
    tensors = training_state(tiny_model, average, {})
    CheckpointWriter(tmp_path, 1).save(1, tensors, metadata)
    assert load_checkpoint_model(next(valid_checkpoints(tmp_path))).generation_config == tiny_model.generation_config


# ---------------------------------------------------------------------------------------------- sharded checkpoints


@pytest.fixture
def _one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    close_process_groups()


def save_shards(folder: Path, step: int, keep: int = 9) -> Path:
    return CheckpointWriter(folder, keep).save_shards(step, TENSORS, {"progress": {"step": step}})


@SHARDED
@pytest.mark.usefixtures("_one_process")
def test_a_sharded_checkpoint_is_visible_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    finish = dcp.HuggingFaceStorageWriter.finish

    def check(writer: dcp.HuggingFaceStorageWriter, *arguments: Any) -> None:
        finish(writer, *arguments)
        assert [step_of(path) for path in checkpoints_in(tmp_path)] == [1]

    monkeypatch.setattr(dcp.HuggingFaceStorageWriter, "finish", check)
    path = save_shards(tmp_path, 2, keep=1)
    assert [*tmp_path.iterdir()] == [path]
    checkpoint = next(valid_checkpoints(tmp_path), None)
    assert (checkpoint.path, checkpoint.step) == (path, 2)
    assert checkpoint.metadata == {"progress": {"step": 2}}
    assert checkpoint.names == TENSORS.keys()
    for name, tensor in read(checkpoint).items():
        torch.testing.assert_close(tensor, TENSORS[name], rtol=0, atol=0)
    save(tmp_path, 3, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000003.safetensors"]


@SHARDED
@pytest.mark.usefixtures("_one_process")
def test_a_failed_write_of_a_sharded_checkpoint_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def fail(*arguments: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(dcp.HuggingFaceStorageWriter, "write_data", fail)
    with pytest.raises(OSError, match=r"checkpoint-00000002 .*No space left on device"):
        save_shards(tmp_path, 2, keep=1)
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [1]
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001.safetensors"]


@SHARDED
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize(
    ("file", "damage"),
    [("shard*", cut_short), ("shard*", Path.unlink), ("state.json", empty), ("state.json", Path.unlink)],
)
def test_damaged_sharded_checkpoints_are_skipped(
    file: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    (path,) = save_shards(tmp_path, 2).glob(file)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert next(valid_checkpoints(tmp_path), None).step == 1
    assert "damaged" in caplog.text


@SHARDED
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("write", [save, save_shards])
def test_a_checkpoint_that_is_removed_while_it_is_read_is_an_error(tmp_path: Path, write: Callable) -> None:
    checkpoint = load_checkpoint(write(tmp_path, 1))
    for path in checkpoint.path.glob("shard*") if checkpoint.path.is_dir() else [checkpoint.path]:
        path.unlink()
    with pytest.raises(OSError, match=r"checkpoint-00000001.* could not be read"):
        read(checkpoint)


def test_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr("training.checkpoints.remove_atomically", fail)
    for step in (1, 2):
        save(tmp_path, step, keep=1)
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [1, 2]
    assert re.search(r"checkpoint-00000001\S* could not be removed\..*not allowed", caplog.text)


# ---------------------------------------------------------------------------------------------------------- signals


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Handle SIGINT as in a terminal. Processes in the background of a script ignore it by default."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_recorded_and_a_second_ctrl_c_interrupts(number: int) -> None:
    with StopRequest() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("_ctrl_c")
def test_further_sigterms_are_ignored() -> None:
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


def test_a_checkpoint_replaces_that_of_the_same_step_in_the_other_format(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-00000002").mkdir()
    path = save(tmp_path, 2)
    assert checkpoints_in(tmp_path) == [path]
