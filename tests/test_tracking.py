# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig
from training import tracking
from training.arguments import TrainingArguments
from training.lora import add_lora
from training.objectives import AnyOrderObjective
from training.tracking import flops_per_token, logger_types, start_tracker


class Recorder:
    """Substitute for an accelerator that records the trackers it starts."""

    def __init__(self) -> None:
        self.started: list[tuple[str, dict | None, dict]] = []

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: Any = None) -> None:
        self.started.append((project_name, config, init_kwargs))


def test_a_tracker_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logger_types("none") is None
    assert logger_types("tensorboard") == "tensorboard"
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="`tracker` is wandb"):
        logger_types("wandb")


def test_trackers_of_resumed_runs(tmp_path: Path) -> None:
    recorder = Recorder()
    for tracker in ("none", "tensorboard", "wandb", "trackio"):
        start_tracker(recorder, tracker, tmp_path / "run", {"seed": 1}, step=20)
    assert recorder.started[0][:2] == ("tensorboard", None)
    assert recorder.started[0][2]["tensorboard"]["purge_step"] == 21
    assert recorder.started[1:] == [("aogpt", {"seed": 1}, {name: {"name": "run"}}) for name in ("wandb", "trackio")]


def test_number_of_operations() -> None:
    """nanoGPT's 6 N + 12 L H Q T, without tables. Causal attention and an encoder's head count half."""
    weights = 12 * 12 * 768**2 + 768 * 50304
    assert flops_per_token(AOGPTConfig(), 1024) == pytest.approx(6 * weights + 6 * 12 * 768 * 1024)
    llama = AOGPTConfig(num_key_value_heads=4, gated_mlp=True, intermediate_size=2048)
    weights = 12 * (768**2 * (2 + 2 / 3) + 3 * 768 * 2048) + 768 * 50304
    assert flops_per_token(llama, 1024) == pytest.approx(6 * weights + 6 * 12 * 768 * 1024)
    weights = 12 * 12 * 768**2 + 768 * 50304 / 2
    assert flops_per_token(MDMEncoderConfig(), 1024) == pytest.approx(6 * weights + 12 * 12 * 768 * 1024)


def test_number_of_operations_with_lora(tmp_path: Path) -> None:
    """Frozen weights have no gradients. Attention is left out: on a CPU, not all versions of PyTorch count it."""
    config = AOGPTConfig(
        vocab_size=64, num_valid_tokens=63, mask_token_id=63, hidden_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=32, position_encoding="rotary", target_injection="none",
    )  # fmt: skip
    model = AOGPTForAnyOrderLM(config)
    counts, attention = [], flops_per_token(config, 32) - flops_per_token(config, 0)
    for rank in (0, 1):
        if rank:
            add_lora(model, TrainingArguments(lora_rank=rank, init_from=str(tmp_path)))
        batch = torch.zeros(3, 32, dtype=torch.long), torch.arange(32).expand(3, -1)
        with FlopCounterMode(display=False) as counter:
            AnyOrderObjective(model)(*batch).backward()
        by_operation = counter.get_flop_counts()["Global"]
        counts.append(sum(count for name, count in by_operation.items() if "attention" not in str(name)) / 96)
    assert counts[0] == flops_per_token(config, 32) - attention
    assert counts[1] == pytest.approx(flops_per_token(config, 32, is_frozen=True) - attention, rel=0.05)
