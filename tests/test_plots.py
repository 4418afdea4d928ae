# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from matplotlib.figure import Figure

from training.plots import plot_run

RESULTS = {
    "steps": 4,
    "loss_curve": {"step": [2, 4], "loss": [6.9, 2.0], "learning_rate": [0.1, 0.01]},
    "evaluations": [
        {"step": 2, "left_to_right": 2.0, "any_order": 3.0},
        {"step": 4, "left_to_right": 1.25, "any_order": 1.5},
    ],
}


def test_picture_shows_all_values(tmp_path: Path, saved_figures: list[Figure]) -> None:
    plot_run(RESULTS, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    training, held_out = saved_figures[0].axes
    lines = [
        {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
        for axes in (training, held_out)
    ]
    assert list(lines[0].values()) == [([2, 4], [6.9, 2.0])]
    assert lines[1] == {
        "random orders: 1.500": ([2, 4], [3.0, 1.5]),
        "left to right: 1.250": ([2, 4], [2.0, 1.25]),
    }
    low, high = training.get_ylim()
    assert low < 2.0 < 6.9 < high
