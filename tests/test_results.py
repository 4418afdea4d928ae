# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from training.arguments import TrainingArguments
from training.data import DataArguments
from training.results import loss_curve, read_finished_run, read_results, write_results


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
    results = {"arguments": {"packing": "documents", "seed": 1, "tokenizer": None}, "steps": 3}
    with pytest.raises(ValueError, match=r"has no results\.json; finish the run first"):
        read_finished_run(tmp_path)
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results
    assert read_finished_run(tmp_path) == (results, DataArguments(packing="documents", tokenizer=f"{tmp_path}/model"))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON file"),
        ("[1]", "has no arguments, steps"),
        ('{"steps": 1}', "has no arguments:"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=f"results.json {message}"):
        read_results(tmp_path)
