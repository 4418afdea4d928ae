# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from training import tracking
from training.tracking import flops_per_token, logger_types, start_tracker


class Recorder:
    """Stands for an accelerator that starts trackers."""

    def __init__(self) -> None:
        self.started: list[tuple[str, dict | None, dict]] = []

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: Any = None) -> None:
        self.started.append((project_name, config, init_kwargs))


def test_tracker_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logger_types("none") == []
    assert logger_types("tensorboard") == ["tensorboard"]
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="tracker=wandb is not installed: `pip install wandb`"):
        logger_types("wandb")


def test_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    recorder = Recorder()
    for tracker in ("none", "tensorboard", "wandb", "trackio"):
        start_tracker(recorder, tracker, tmp_path / "run", {"seed": 1}, step=20)
    (folder, no_config, board), (project, config, wandb), (_, _, trackio) = recorder.started
    assert (folder, no_config, board["tensorboard"]["purge_step"]) == ("tensorboard", None, 21)
    assert (project, config) == ("aogpt", {"seed": 1})
    assert (wandb["wandb"]["name"], wandb["wandb"]["resume"]) == ("run", "allow")
    assert trackio["trackio"] == {"name": "run", "resume": "allow"}
    start_tracker(recorder, "wandb", tmp_path / "run", {"seed": 1}, step=40)
    start_tracker(recorder, "wandb", tmp_path / "other", {"seed": 1}, step=0)
    ids = [given["wandb"]["id"] for _, _, given in recorder.started[1:]]
    assert ids[0] == ids[2] != ids[3]


def test_operations_are_counted() -> None:
    """nanoGPT's count, 6 N + 12 L H Q T of GPT-2 small, without tables; causality spares half of the second term."""
    weights = 12 * 12 * 768**2 + 768 * 50304
    assert flops_per_token(AOGPTConfig(), 1024) == pytest.approx(6 * weights + 6 * 12 * 768 * 1024)
    assert flops_per_token(MDMEncoderConfig(), 1024) == pytest.approx(6 * weights + 12 * 12 * 768 * 1024)
