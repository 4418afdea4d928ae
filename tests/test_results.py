# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from training.arguments import TrainingArguments
from training.results import loss_curve, read_results, write_results


@pytest.mark.parametrize(
    ("window", "steps", "means"),
    [(1, [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]), (2, [2, 4, 5], [4.5, 2.5, 1]), (5, [5], [3]), (9, [5], [3])],
)
def test_curve_is_the_mean_of_each_window(window: int, steps: list[int], means: list[float]) -> None:
    training = TrainingArguments(max_steps=5, warmup_steps=4, final_learning_rate=0.0, logging_steps=window)
    curve = loss_curve([5.0, 4.0, 3.0, 2.0, 1.0], training)
    assert curve["step"] == steps
    assert curve["loss"] == pytest.approx(means)
    assert curve["learning_rate"] == pytest.approx([6e-4 * step / 5 for step in steps])


def test_only_finished_runs_have_results(tmp_path: Path) -> None:
    assert read_results(tmp_path) is None
    write_results({"steps": 3}, tmp_path)
    assert read_results(tmp_path) == {"steps": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
