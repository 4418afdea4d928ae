# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Tables and a figure of the results of a study.

    python eval/studies/runner/report.py RESULTS [RESULTS ...]

RESULTS is a folder with JSON files. The command writes tables.md and figure.png into it. Each JSON file that has the
keys `title`, `table` and `plotted` is one table, and one panel of the figure. `table` contains the rows by name, and a
row its cells by column. A cell is a text, a number, or a dictionary: `mean`, with either `half_width` (see `estimate`)
or `interval` (see `summarize_fractions`). `plotted` lists the columns that the figure shows.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.commands import one_line_errors
from common.files import write_text
from common.reports import MARKERS, markdown_table, save_figure, style_axes
from eval.studies.runner.estimates import format_estimate

NOTE = (
    "Values are means over seeds. After ± is half the width of the 95 % confidence interval over seeds (Student's t). "
    "In parentheses is the 95 % interval over problems (Wilson)."
)


def write_report(folder: Path) -> None:
    """Write tables.md and figure.png for the JSON files in a folder. Without tables, write nothing."""
    contents = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.json"))}
    results = {path: content for path, content in contents.items() if "table" in content}
    if not results:
        return
    _plot(results.values(), folder / "figure.png")
    study = next(parent.name for parent in folder.absolute().parents if parent.name != "results")
    parts = [f"# Results of {study}", NOTE, "![All tables](figure.png)"]
    for path, result in results.items():
        name = path.relative_to(folder).as_posix()
        parts += [f"## {result['title']}", _format_table(result["table"]), f"[{name}]({name})"]
    write_text(folder / "tables.md", "\n\n".join(parts) + "\n")


def _format_table(table: dict[str, dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    rows = [[name, *(_format_cell(row.get(column)) for column in columns)] for name, row in table.items()]
    return markdown_table(["", *columns], rows, align="l" + "r" * len(columns))


def _format_cell(cell: Any) -> str:
    if isinstance(cell, dict) and "interval" in cell:
        low, high = cell["interval"]
        return f"{cell['mean']:.1%} ({low:.1%} to {high:.1%})"
    if isinstance(cell, dict):
        return format_estimate(cell)
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell or ""


def _plot(results: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each table: its rows from top to bottom, and the plotted columns as points with intervals."""
    results = list(results)
    heights = [1.2 + 0.25 * len(result["table"]) for result in results]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, result in zip(panels, results, strict=True):
        for number, column in enumerate(result["plotted"]):
            _plot_column(axes, result["table"], column, MARKERS[number % len(MARKERS)])
        axes.set_yticks(range(len(result["table"])), list(result["table"]))
        axes.invert_yaxis()
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        style_axes(axes, result["title"])
    save_figure(figure, path, dpi=80)


def _plot_column(axes: Axes, table: dict[str, dict[str, Any]], column: str, marker: str) -> None:
    points = [(place, row[column]) for place, row in enumerate(table.values()) if row.get(column) is not None]
    means = [cell["mean"] for _, cell in points]
    ends = [cell.get("interval") or _interval(cell) for _, cell in points]
    errors = [[mean - low for mean, (low, _) in zip(means, ends, strict=True)]]
    errors += [[high - mean for mean, (_, high) in zip(means, ends, strict=True)]]
    axes.errorbar(means, [place for place, _ in points], xerr=errors, fmt=marker, markersize=4, capsize=2, label=column)


def _interval(cell: dict[str, Any]) -> tuple[float, float]:
    half_width = cell["half_width"] or 0.0
    return cell["mean"] - half_width, cell["mean"] + half_width


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    for folder in map(Path, argv or [""]):
        if not list(folder.glob("*.json")):
            raise ValueError(f"The folder {str(folder)!r} has no JSON files. Pass folders of results.")
        write_report(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
