# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The picture in the README: it shows the numbers of the result files."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from eval.benchmarks import overview

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def test_bars_have_the_values_of_the_results() -> None:
    solved, recipes = Figure().subplots(1, 2)
    folders = ("sudoku", "sudoku_encoder")
    results = {name: json.loads((RESULTS / name / "results.json").read_text("utf-8")) for name in folders}
    overview.draw_solved(solved, results)
    overview.draw_recipes(recipes, json.loads((RESULTS / "study_gap" / "gap.json").read_text("utf-8")))
    assert [text.get_text() for text in solved.texts] == ["93%", "7%", "4%", "9%", "99%"]
    assert [bar.get_width() for bar in recipes.patches] == pytest.approx([2.546, 2.256, 1.969, 1.647], abs=1e-3)


def test_extrapolated_times_are_marked() -> None:
    points = [
        {
            "contender": name,
            "num_steps": steps,
            "seconds": float(steps),
            "is_computed": name == "encoder" and steps == 8,
        }
        for name, *_ in overview.TIMES
        for steps in (4, 8)
    ] + [{"contender": "decoder", "num_steps": None, "seconds": 1.0, "is_computed": False}]
    axes = Figure().subplots()
    overview.draw_times(axes, {"points": points, "length": 128, "contenders": {"decoder": {"num_parameters": 10**6}}})
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert lines["AO-GPT, random order"] == [4, 8]
    assert lines["AO-GPT, the same in blocks of 32"] == [8]  # four steps fill whole blocks
    marked = [line for line in axes.lines if line.get_color() == "white"]
    assert [list(line.get_xdata()) for line in marked] == [[8]]


def test_the_command_writes_the_picture(tmp_path: Path) -> None:
    overview.main(["--output_dir", str(tmp_path / "new")])
    assert (tmp_path / "new" / "overview.png").read_bytes().startswith(b"\x89PNG")
