# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Time of a generation against its steps, as Figure 5 of the paper, and its memory against the length; on log axes.

    python eval/speed_plot.py SPEED.JSON [SPEED.JSON ...] OUTPUT.PNG

Several reports of eval/speed.py go into one picture.
"""

import argparse
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from training.errors import errors_in_a_line
from training.files import read_json
from training.plots import BLUE, GREY, ORANGE, save, tidy

GREEN, RED = "#3a8a4d", "#b03a48"
COLORS = {"decoder": BLUE, "encoder": ORANGE, "causal-lm": GREEN, "compare": RED}
OF_ABLATIONS = (
    ("#7b6fb0", "s"),
    ("#3f9c9a", "v"),
    ("#c06c9b", "D"),
    ("#a3842c", "^"),
    ("#6b7f3a", "P"),
    ("#5c5c5c", "X"),
)


def plot_speed(points: list[dict[str, Any]], length: int, path: Path) -> None:
    """One panel for each batch size; `points` as in the report of eval/speed.py."""
    batch_sizes = sorted({point["batch_size"] for point in points})
    figure = Figure(figsize=(1.2 + 4.3 * len(batch_sizes), 4), layout="constrained")
    all_axes = figure.subplots(1, len(batch_sizes), squeeze=False, sharey=True)[0]
    for axes, batch_size in zip(all_axes, batch_sizes, strict=True):
        here = [point for point in points if point["batch_size"] == batch_size]
        of_ablations = cycle(OF_ABLATIONS)
        for name in dict.fromkeys(point["contender"] for point in here):
            own = sorted((point for point in here if point["contender"] == name), key=lambda point: point["num_steps"])
            color = next((color for start, color in COLORS.items() if name.startswith(start)), None)
            color, marker = (color, "o") if color else next(of_ablations)
            is_extrapolated = any(point["is_extrapolated"] for point in own)
            axes.plot(
                [point["num_steps"] for point in own],
                [point["seconds"] for point in own],
                color=color,
                marker=marker,
                markersize=5,
                linestyle="--" if is_extrapolated else "-",
                label=f"{name} (one pass, times steps)" if is_extrapolated else name,
            )
        floors = sorted((point["num_steps"], point["floor_seconds"]) for point in here if "floor_seconds" in point)
        if floors:
            axes.plot(*zip(*floors, strict=True), color=GREY, linestyle=":", marker="_", label="floor of this machine")
        steps = sorted({point["num_steps"] for point in here})
        axes.set(xscale="log", yscale="log", xlabel="steps")
        axes.set_xticks(steps, [str(step) for step in steps])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.set_title(f"batch {batch_size}, {length} tokens", loc="left", fontsize=11)
        tidy(axes)
        axes.legend(frameon=False, fontsize=7)
    all_axes[0].set_ylabel("seconds")
    save(figure, path)


def plot_memory(memory: list[dict[str, Any]], path: Path) -> None:
    """`memory` as in the report of eval/speed.py."""
    memory = sorted(memory, key=lambda row: row["length"])
    lengths = [row["length"] for row in memory]
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    for name, label, color in (
        ("peak_bytes", "peak, beside the weights", BLUE),
        ("modulation_bytes", "modulation table", ORANGE),
        ("cache_bytes", "keys and values", GREEN),
    ):
        axes.plot(lengths, [row[name] / 1e6 for row in memory], color=color, marker="o", markersize=5, label=label)
    ends = lengths[0] / 1.2, lengths[-1] * 1.2
    per_token = memory[0]["peak_bytes"] / 1e6 / lengths[0]
    axes.plot(ends, [per_token * end for end in ends], color=GREY, linestyle=":", label="slope of one")
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="MB")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("memory of a generation, batch 1", loc="left", fontsize=11)
    tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Time of a generation against its steps.")
    parser.add_argument("reports", nargs="+", type=Path, metavar="SPEED.JSON", help="a report of eval/speed.py")
    parser.add_argument("output", type=Path, metavar="OUTPUT.PNG")
    arguments = parser.parse_args(argv)
    keys = ("hardware", "length", "dtype", "points")
    reports = [read_json(path, keys, "eval/speed.py") for path in arguments.reports]
    kinds = sorted({", ".join(map(str, (*r["hardware"].values(), r["length"], r["dtype"]))) for r in reports})
    if len(kinds) != 1:
        raise ValueError(f"Give reports of one machine, length and dtype; these are of {'; of '.join(kinds)}.")
    plot_speed([point for report in reports for point in report["points"]], reports[0]["length"], arguments.output)


if __name__ == "__main__":
    main(sys.argv[1:])
