# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from training.compare_runs import main


def write_run(folder: Path, arguments: dict[str, Any], num_bytes: int = 8, **last: float) -> str:
    """Write the results of a run with two evaluations. The first has 4 bits per byte."""
    evaluations = [
        {"step": step, **scores, "sequences": 2, "bytes": num_bytes}
        for step, scores in ((5, dict.fromkeys(last, 4.0)), (10, last))
    ]
    results = {
        "arguments": {"output_dir": str(folder), "seed": 0, **arguments},
        "corpus": {"sources": [{"name": "python-stdlib"}]},
        "steps": 10,
        "num_parameters": 1,
        "tokens": 640,
        "train_seconds": 1.0,
        "loss_curve": {"step": [5, 10], "loss": [6.0, 3.0], "learning_rate": [0.1, 0.01]},
        "evaluations": evaluations,
        "hardware": {},
        "versions": {},
    }
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [
        write_run(tmp_path / "decoder", {"orders": "random"}, left_to_right=1.5, any_order=2.25),
        write_run(tmp_path / "encoder", {"orders": None}, any_order=1.75),
    ]


def test_the_table_has_differing_settings_and_results(runs: list[str], tmp_path: Path) -> None:
    main([*runs, "--output_dir", str(tmp_path / "out")])
    lines = (tmp_path / "out" / "runs.md").read_text().splitlines()
    assert lines[-4:] == [
        "|  | `orders` | left to right | random orders |",
        "| --- | --- | --- | --- |",
        "| encoder | None |  | 1.750 |",  # sorted by the last column
        "| decoder | random | 1.500 | 2.250 |",
    ]
    assert "8 held-out bytes" in lines[4]
    kept = json.loads((tmp_path / "out" / "runs.json").read_text())
    assert list(kept) == ["decoder", "encoder"]
    assert kept["decoder"]["evaluations"][-1]["left_to_right"] == 1.5


def test_the_figure_shows_every_run(runs: list[str], tmp_path: Path, saved_figures: list[Figure]) -> None:
    main([*runs, "--output_dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "runs.png").read_bytes().startswith(b"\x89PNG")
    curves = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in saved_figures[0].axes]
    assert curves == [
        {"decoder": [6.0, 3.0], "encoder": [6.0, 3.0]},
        {"decoder": [4.0, 1.5]},
        {"decoder": [4.0, 2.25], "encoder": [4.0, 1.75]},
    ]
    colors = [{line.get_label(): line.get_color() for line in axes.lines} for axes in saved_figures[0].axes]
    assert colors[0] == colors[2]
    assert colors[0]["decoder"] == colors[1]["decoder"] != colors[0]["encoder"]


def test_runs_that_cannot_be_compared_are_errors(runs: list[str], tmp_path: Path) -> None:
    longer = write_run(tmp_path / "longer", {}, num_bytes=9, any_order=1.0)
    (tmp_path / "elsewhere").mkdir()
    same_name = write_run(tmp_path / "elsewhere" / "decoder", {}, any_order=1.0)
    (tmp_path / "unfinished").mkdir()
    for folder, message in (
        (longer, "longer was evaluated on .*9.*, and decoder on .*8"),
        (same_name, "have the same name"),
        (str(tmp_path / "unfinished"), "so the run is not finished"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*runs, folder, "--output_dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
