# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Markdown tables and matplotlib figures of reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from common.files import atomic_file

MARKERS = "osD^v<>Ph"
FINE_TICKS = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7)
GREY, BLUE, ORANGE, GREEN, RED = "#8c8c8c", "#1f5fa8", "#d9730d", "#3a8a4d", "#b03a48"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Return a Markdown table. `align` has one letter per column, `l` or `r`. By default, columns are not aligned."""
    rules = [{"l": ":--", "r": "--:"}[side] for side in align]
    rule = f"|{'|'.join(rules)}|" if rules else f"| {' | '.join(['---'] * len(header))} |"
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, rule, *others])


def with_error(value: float, error: float | None, digits: int) -> str:
    """Format a number, followed by its standard error if it is known."""
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def style_axes(axes: Axes, title: str) -> None:
    """Set the title of axes, and the grid and borders that are the same in all reports."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def label_log_axis(axis: Axis, subs: Sequence[float] = (1, 2, 5)) -> None:
    """Label a logarithmic axis with plain numbers: `subs`, multiplied by powers of ten."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@dataclass
class Panel:
    """Plot of lines, which are lists of points (x, y) by name. The vertical axis is logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]]
    has_log_x: bool = True


def save_panels(panels: Sequence[Panel], path: Path) -> None:
    """Plot panels side by side. A line has the same color and marker in all panels, and one entry in the legend."""
    figure = Figure(figsize=(5 * len(panels) + 2.5, 4.8), layout="constrained")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    handles = {}
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, points in panel.lines.items():
            number = names.index(name)
            style = {"color": colormaps["turbo"]((number + 0.5) / len(names)), "marker": MARKERS[number % len(MARKERS)]}
            (handles[name],) = axes.plot(*zip(*sorted(points), strict=True), **style, markersize=5, label=name)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label, yscale="log")
        label_log_axis(axes.yaxis)
        if panel.has_log_x:
            axes.set_xscale("log")
            ticks = sorted({x for points in panel.lines.values() for x, _ in points})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        style_axes(axes, panel.title)
    figure.legend(handles=[*handles.values()], loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure to a PNG file atomically."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
