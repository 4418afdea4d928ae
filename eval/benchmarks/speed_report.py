# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Report of `speed.py`: tables, and a plot of time against steps (like Figure 5 of the paper)."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from common.files import write_json, write_text
from common.reports import markdown_table, save_figure, style_axes

MARKERS = "osD^v<>Ph"
RANDOM_WEIGHTS = (
    "All weights are random. This does not change the time of a pass, but it changes how many drafts are accepted, so "
    "speculative decoding and prompt lookup take other times with trained models. "
)


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write speed.json, speed.md and speed.png."""
    write_json(folder / "speed.json", report)
    write_text(folder / "speed.md", to_markdown(report) + "\n")
    _plot_speed(report["points"], report["length"], folder / "speed.png")


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of speed.md."""
    hardware = ", ".join(f"{name} {value}" for name, value in report["hardware"].items())
    packages = ", ".join(f"{name} {report['versions'][name]}" for name in ("torch", "transformers", "python"))
    contenders = [
        (name, "" if facts["num_parameters"] is None else f"{facts['num_parameters'] / 1e6:.1f} M", facts["remark"])
        for name, facts in report["contenders"].items()
    ]
    rows = [
        (
            *(str(point["batch_size"]), str(point["num_steps"] or "own"), point["contender"]),
            *(f"{point['seconds']:.3g}", f"{point['ratio']:.2f}"),
        )
        for point in report["points"]
    ]
    parts = [
        "# Speed of generation",
        f"Every contender generated {report['length']} tokens per sequence in {report['dtype']}. "
        f"{RANDOM_WEIGHTS if report['model'] is None else ''}Machine and libraries: {hardware}; {packages}.",
        f"```bash\n{report['command']}\n```",
        markdown_table(["contender", "parameters", "what it does"], contenders, "lrl"),
        "The contenders took turns. The seconds are those of the fastest round. The ratio is the time divided by the "
        "time of the decoder with the same number of steps (median over rounds). For contenders that choose their "
        "number of steps themselves, it is the time divided by the time of one-by-one. Not all contenders sample from "
        "the same distribution: with a given number of steps, the tokens of a step are drawn independently, and causal "
        "language models can only sample left to right.",
        markdown_table(["batch", "steps", "contender", "seconds", "ratio"], rows, "rrlrr"),
    ]
    return "\n\n".join(parts)


def _plot_speed(points: list[dict[str, Any]], length: int, path: Path) -> None:
    """
    Plot time against the number of steps, with a panel for each batch size.

    Contenders that choose their number of steps themselves are horizontal lines.
    """
    batch_sizes = sorted({point["batch_size"] for point in points})
    figure = Figure(figsize=(4.4 + 4 * len(batch_sizes), 5), layout="constrained")
    all_axes = figure.subplots(1, len(batch_sizes), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(point["contender"] for point in points))
    for axes, batch_size in zip(all_axes, batch_sizes, strict=True):
        panel = [point for point in points if point["batch_size"] == batch_size]
        for index, name in enumerate(names):
            color, marker = colormaps["tab20"](index), MARKERS[index % len(MARKERS)]
            line = {point["num_steps"]: point["seconds"] for point in panel if point["contender"] == name}
            if None in line:
                axes.axhline(line[None], color=color, linestyle="--", linewidth=1.2, label=name)
            else:
                axes.plot(list(line), list(line.values()), color=color, marker=marker, markersize=5, label=name)
        steps = sorted({point["num_steps"] for point in panel if point["num_steps"]})
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.set(xscale="log", yscale="log", xlabel="steps")
        axes.set_xticks(steps, [str(count) for count in steps])
        axes.xaxis.set_minor_locator(NullLocator())
        style_axes(axes, f"batch {batch_size}, {length} tokens")
    all_axes[0].set_ylabel("seconds")
    handles, labels = all_axes[0].get_legend_handles_labels()
    title = "dashed: chooses its number of steps"
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8, title=title, title_fontsize=7)
    save_figure(figure, path)
