# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
import torch

from eval.benchmarks import training_speed
from eval.benchmarks.training_speed import Arguments, measure


def test_report_of_a_tiny_size(tmp_path: Path) -> None:
    options = ["--size", "tiny", "--steps", "3", "--output_dir", str(tmp_path)]
    training_speed.main(options)
    results = json.loads((tmp_path / "results.json").read_text())
    assert abs(results["losses"][0] - 6.24) < 0.1  # log 512
    assert results["mfu"] is None  # unknown on a CPU
    written = (tmp_path / "README.md").read_text()
    assert "| tokens per step | 3 x 64 |" in written
    assert "| data / forward / backward / optimizer |" in written
    assert f"`python eval/benchmarks/training_speed.py {' '.join(options)}`" in written


def test_activation_checkpointing_is_used_and_changes_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    used, checkpoint = [], training_speed.checkpoint_activations
    monkeypatch.setattr(
        training_speed, "checkpoint_activations", lambda model, kind: used.append(kind) or checkpoint(model, kind)
    )
    kinds = ["none", "selective", "full"]
    none, *others = (measure(Arguments("tiny", steps=3, activation_checkpointing=kind))["losses"] for kind in kinds)
    assert others == [none, none]
    assert used == kinds


def test_the_second_half_of_the_steps_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = (0, 50, 100, 110)
    times = iter([float(start + after) for start in starts for after in (0, 1, 3, 6, 10)])
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(training_speed, "mark", lambda: next(times))
    monkeypatch.setattr(torch, "compile", lambda module: compiled.append(module) or module)
    found = measure(Arguments("tiny", steps=4, compile=True))
    assert (found["step_seconds"], found["tokens_per_second"]) == (10, 19.2)
    assert found["shares"] == {"data": 0.1, "forward": 0.2, "backward": 0.3, "optimizer": 0.4}
    assert len(compiled) == 2  # the loss of the head, and the rest


def test_bf16_needs_bfloat16_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    rounded, exact = (
        measure(Arguments("tiny", steps=3, mixed_precision=precision))["losses"][-1] for precision in ("bf16", "no")
    )
    assert 0 < abs(rounded - exact) < 0.05  # blocks are initialized as the identity
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.raises(SystemExit, match=r"^error: `mixed_precision`"):
        training_speed.main(["--size", "tiny", "--mixed_precision", "bf16"])
