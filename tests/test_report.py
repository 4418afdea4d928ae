# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from training.arguments import TrainingArguments
from training.report import loss_curve, write_report

RESULTS = {
    "arguments": {"keep_best": None, "orders": "random", "block_length": None, "stride": None},
    "num_parameters": 1234,
    "steps": 4,
    "tokens": 5000,
    "train_seconds": 2.5,
    "tokens_per_second": 2000.0,
    "loss_curve": {"step": [2, 4], "loss": [6.9, 2.0], "learning_rate": [0.1, 0.01]},
    "evaluations": [
        {"step": 2, "left_to_right": 2.0, "any_order": 3.0, "sequences": 7},
        {"step": 4, "left_to_right": 1.25, "any_order": 1.5, "sequences": 7},
    ],
    "hardware": {"device": "cpu", "device_name": "x86_64", "num_processes": 2, "mixed_precision": "no"},
}


def test_the_report_contains_the_results(tmp_path: Path) -> None:
    write_report(RESULTS, ["a text with ``` in it"], tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == RESULTS
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()
    for line in (
        f"# {tmp_path.name}",
        "| tokens | 5,000 |",
        "| machine at the end | 2 x x86_64 (cpu) |",
        "| last training loss | 2.0000 nats per token |",
        "![Training loss and held-out bits per byte](loss.png)",
        "| step | left to right | random orders | sequences |",
        "| 4 | 1.2500 | 1.5000 | 7 |",
    ):
        assert line in lines
    assert lines[lines.index("a text with ``` in it") - 1] == "````text"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "in random orders"),
        ({"orders": "context_first", "stride": 2}, "in random orders, in blocks,"),
        ({"orders": "gaps_last"}, "from left to right"),
        ({"orders": "shared"}, "in the order of the training"),
    ],
)
def test_the_report_says_how_samples_were_generated(tmp_path: Path, settings: dict, text: str) -> None:
    write_report(RESULTS | {"arguments": RESULTS["arguments"] | settings}, ["a"], tmp_path)
    assert f"\nGenerated {text} without a prompt, with" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "text"), [(None, ""), ("nf4", " and projections in nf4")])
def test_the_report_says_that_evaluations_were_quantized(tmp_path: Path, kind: str | None, text: str) -> None:
    settings = RESULTS["arguments"] | {"quantization": kind, "lora_rank": 4}
    write_report(RESULTS | {"arguments": settings}, [], tmp_path)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"averages of the weights{text}. The model has" in report
    assert f"| parameters | {RESULTS['num_parameters']:,} with the adapter |" in report


def test_the_report_of_an_encoder_without_samples(tmp_path: Path) -> None:
    write_report(RESULTS | {"evaluations": [{"step": 4, "any_order": 1.5, "sequences": 7}]}, [], tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| 4 | 1.5000 | 7 |" in text
    assert "Samples" not in text


@pytest.mark.parametrize(
    ("window", "steps", "means"),
    [(1, [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]), (2, [2, 4, 5], [4.5, 2.5, 1]), (5, [5], [3]), (9, [5], [3])],
)
def test_the_loss_curve_has_the_mean_of_each_window(window: int, steps: list[int], means: list[float]) -> None:
    training = TrainingArguments(max_steps=5, warmup_steps=4, final_learning_rate=0.0, logging_steps=window)
    curve = loss_curve([5.0, 4.0, 3.0, 2.0, 1.0], training)
    assert curve["step"] == steps
    assert curve["loss"] == pytest.approx(means)
    assert curve["learning_rate"] == pytest.approx([6e-4 * step / 5 for step in steps])
