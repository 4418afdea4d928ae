# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What runs of eval/likelihood_estimators.py found, put together in report.md and report.png beside the first of them.

python eval/likelihood_report.py docs/results/likelihood/*.json
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from eval.likelihood_estimators import mean
from training.errors import errors_in_a_line
from training.files import read_json, write_text
from training.plots import BLUE, GREY, ORANGE, save, tidy

KEYS = ("run", "length", "num_context_orders", "estimators", "comparison")
GREEN = "#3a7d44"
LABELS = {
    "all ranks": ("all ranks (prefix rows)", GREY),
    "random ranks": ("random ranks, gain over the order's own likelihood", GREEN),
    "masked diffusion": ("masked diffusion", ORANGE),
    "masked diffusion, gain": ("masked diffusion, gain over the chains' likelihood", BLUE),
}


def table(measured: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: rows, standard errors, and how many times fewer rows one standard error takes than with all ranks."""
    yield "| text | n | M | estimator | rows per sequence | ± nats per token | times fewer rows | off by |"
    yield "|:--|--:|--:|:--|--:|--:|--:|--:|"
    for one in sorted(measured, key=lambda one: one["length"]):
        for name, (label, _) in LABELS.items():
            if name not in one["estimators"]:
                continue
            values, figures = one["estimators"][name], one["comparison"][name]
            fewer = f"({figures['times_fewer_rows_by_variance_of_one_context_order']:.3g})"
            away = ""
            if "times_fewer_rows" in figures:
                fewer = f"{figures['times_fewer_rows']:.3g}"
                away = f"{figures['difference_in_standard_errors']:+.1f}"
            error = math.sqrt(mean(values["squared_errors"])) / one["length"]
            yield (
                f"| {', '.join(one['run']['corpus'])} | {one['length']} | {one['num_context_orders']} | {label} | "
                f"{values['rows_per_sequence']:,.0f} | {error:.2g} | {fewer} | {away} |"
            )
    yield ""
    yield (
        "±: the standard error. Times fewer rows: rows x squared error of all ranks over that of the estimator; in "
        "brackets, where all ranks were too many rows: their rows counted, and their variance taken to be that of one "
        "order without an ensemble. Off by: the difference from all ranks, summed over the sequences that both scored, "
        "in standard errors. The design of whole passes takes twice the rows of all ranks and some."
    )


def plot(measured: list[dict[str, Any]], path: Path) -> None:
    """Standard error against rows, for each run."""
    measured = sorted(measured, key=lambda one: one["length"])
    figure = Figure(figsize=(4.2 * len(measured) + 0.6, 4.2), layout="constrained")
    for axes, one in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        length = one["length"]
        shown = {name: values for name, values in one["estimators"].items() if name in LABELS}
        points = {
            name: (values["rows_per_sequence"], math.sqrt(mean(values["squared_errors"])) / length)
            for name, values in shown.items()
        }
        lowest, highest = min(rows for rows, _ in points.values()), max(rows for rows, _ in points.values())
        for name, (rows, error) in points.items():
            label, color = LABELS[name]
            ends = [lowest / 3, highest * 3]
            axes.plot(ends, [error * math.sqrt(rows / end) for end in ends], color=color, linewidth=1.2, label=label)
            axes.plot([rows], [error], "o", color=color, markersize=5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(
            f"{', '.join(one['run']['corpus'])}, n = {length}, M = {one['num_context_orders']}", loc="left", fontsize=10
        )
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("rows per sequence")
        tidy(axes)
    figure.axes[0].set_ylabel("standard error, nats per token")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, path)


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Estimators of the ensemble as a table and a picture.")
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    files = parser.parse_args(argv).results
    measured = [read_json(file, KEYS, "eval/likelihood_estimators.py") for file in files]
    folder = files[0].parent
    plot(measured, folder / "report.png")
    write_text(folder / "report.md", "\n".join(table(measured)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
