# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Reports of `speed.py`: a table, a plot of time against steps (like Figure 5 of the paper), and a plot of memory.

    python eval/benchmarks/speed_report.py SPEED.json [SPEED.json ...] --output_dir FOLDER

The command draws several reports of the same machine in one picture, speed.png.
"""

import sys
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from common.commands import Parser, one_line_errors
from common.files import read_json, write_json, write_text
from common.reports import BLUE, GREEN, GREY, ORANGE, RED, markdown_table, save_figure, style_axes

COLORS = {"decoder": BLUE, "encoder": ORANGE, "causal-lm": GREEN, "compare": RED}
ABLATION_STYLES = (
    *(("#7b6fb0", "s"), ("#3f9c9a", "v"), ("#c06c9b", "D"), ("#a3842c", "^"), ("#6b7f3a", "P")),
    ("#5c5c5c", "X"),
)


@dataclass
class Arguments:
    """Options of eval/benchmarks/speed_report.py."""

    output_dir: Path = field(metadata={"help": "Folder for speed.png."})


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write speed.json, speed.md, speed.png and, if memory was measured, memory.png."""
    write_json(folder / "speed.json", report)
    write_text(folder / "speed.md", to_markdown(report) + "\n")
    _plot_speed(report["points"], report["length"], folder / "speed.png")
    if "memory" in report:
        _plot_memory(report["memory"], folder / "memory.png")


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of speed.md."""
    machine = report["machine"]
    hardware = ", ".join(f"{name} {value}" for name, value in report["hardware"].items())
    packages = ", ".join(f"{name} {report['versions'][name]}" for name in ("torch", "transformers", "python"))
    decoders = {(p["batch_size"], p["num_steps"]): p for p in report["points"] if p["contender"] == "decoder"}
    rows = [
        (
            *(str(point["batch_size"]), str(point["num_steps"]), _label(point), f"{point['seconds']:.3g}"),
            f"{point['seconds'] / point['floor_seconds']:.2f}",
            f"{point['seconds'] / decoders[point['batch_size'], point['num_steps']]['seconds']:.2f}",
        )
        for point in report["points"]
    ]
    parts = [
        "# Speed of generation",
        f"The model has {report['num_parameters'] / 1e6:.1f} million parameters and generates {report['length']} "
        f"tokens in {report['dtype']}. Machine and libraries: {hardware}; {packages}. On this machine, large matrix "
        f"products reach {machine['flop_per_second'] / 1e9:.0f} GFLOP/s, and weights are read at "
        f"{machine['bytes_per_second'] / 1e9:.1f} GB/s. The floor is the time that the decoder's operations take at "
        "this speed, or the time to read its weights and cache, whichever is longer.",
        f"```bash\n{report['command']}\n```",
        markdown_table(
            ["batch", "steps", "contender", "seconds", "relative to floor", "relative to decoder"], rows, "rrlrrr"
        ),
    ]
    if memory := report.get("memory"):
        sizes = ("cache_bytes", "modulation_bytes", "peak_bytes")
        rows = [(str(row["length"]), *(f"{row[name] / 1e6:.1f}" for name in sizes)) for row in memory]
        parts += [
            "The next table shows the memory of a generation of one sequence in MB, in addition to the weights:",
            markdown_table(["tokens", "keys and values", "modulation table", "peak"], rows, "rrrr"),
        ]
    return "\n\n".join(parts)


def _label(point: dict[str, Any]) -> str:
    return point["contender"] + (" (one pass, times steps)" if point["is_extrapolated"] else "")


def _plot_speed(points: list[dict[str, Any]], length: int, path: Path) -> None:
    """Plot time against the number of steps, with a panel for each batch size."""
    batch_sizes = sorted({point["batch_size"] for point in points})
    figure = Figure(figsize=(1.2 + 4.3 * len(batch_sizes), 4), layout="constrained")
    all_axes = figure.subplots(1, len(batch_sizes), squeeze=False, sharey=True)[0]
    for axes, batch_size in zip(all_axes, batch_sizes, strict=True):
        panel = sorted(
            (point for point in points if point["batch_size"] == batch_size), key=lambda point: point["num_steps"]
        )
        ablation_styles = cycle(ABLATION_STYLES)
        for name in dict.fromkeys(point["contender"] for point in points):
            if not (line := [point for point in panel if point["contender"] == name]):
                continue
            color = next((color for start, color in COLORS.items() if name.startswith(start)), None)
            color, marker = (color, "o") if color else next(ablation_styles)
            steps, seconds = zip(*((point["num_steps"], point["seconds"]) for point in line), strict=True)
            style = {"color": color, "marker": marker, "linestyle": "--" if line[0]["is_extrapolated"] else "-"}
            axes.plot(steps, seconds, markersize=5, label=_label(line[0]), **style)
        floors = zip(*((point["num_steps"], point["floor_seconds"]) for point in panel), strict=True)
        axes.plot(*floors, color=GREY, linestyle=":", marker="_", label="floor of this machine")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        ticks = sorted({point["num_steps"] for point in panel})
        _finish_axes(axes, f"batch {batch_size}, {length} tokens", "steps", ticks)
    all_axes[0].set_ylabel("seconds")
    save_figure(figure, path)


def _plot_memory(memory: list[dict[str, Any]], path: Path) -> None:
    """Plot the memory of a generation against the number of tokens."""
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
    axes.set_ylabel("MB")
    axes.yaxis.set_major_formatter("{x:g}")
    _finish_axes(axes, "memory of a generation, batch 1", "tokens", lengths)
    save_figure(figure, path)


def _finish_axes(axes: Axes, title: str, label: str, ticks: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    style_axes(axes, title)
    axes.legend(frameon=False, fontsize=8)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments, description="Draw several reports of eval/benchmarks/speed.py in one picture.")
    parser.add_argument("reports", nargs="+", type=Path, metavar="SPEED.json", help="a report of speed.py")
    arguments, others = parser.parse(argv)
    keys = ("hardware", "length", "dtype", "points")
    reports = [read_json(path, keys, "eval/benchmarks/speed.py") for path in others.reports]
    settings = sorted({", ".join(map(str, (*r["hardware"].values(), r["length"], r["dtype"]))) for r in reports})
    if len(settings) != 1:
        raise ValueError(
            "All reports must come from the same machine, length and dtype, but they come from: "
            f"{'; '.join(settings)}. Draw them in separate pictures."
        )
    points = [point for report in reports for point in report["points"]]
    _plot_speed(points, reports[0]["length"], arguments.output_dir / "speed.png")


if __name__ == "__main__":
    main(sys.argv[1:])
