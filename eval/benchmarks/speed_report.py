# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Report of `speed.py`: tables, a plot of time against steps (like Figure 5 of the paper), and a plot of memory."""

from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from common.files import write_json, write_text
from common.reports import BLUE, GREEN, GREY, MARKERS, ORANGE, RED, markdown_table, save_figure, style_axes

RANDOM_WEIGHTS = (
    "All weights are random. This does not change the time of a pass, but it changes how many drafts are accepted, so "
    "the times of speculative decoding and prompt lookup are different with trained models. "
)


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
    contenders = [
        (name, "" if facts["num_parameters"] is None else f"{facts['num_parameters'] / 1e6:.1f} M", facts["remark"])
        for name, facts in report["contenders"].items()
    ]
    rows = [
        (
            *(str(point["batch_size"]), str(point["num_steps"] or "own"), _label(point)),
            "out of memory" if point["seconds"] is None else f"{point['seconds']:.3g}",
            "" if point["seconds"] is None else f"{point['seconds'] / point['floor_seconds']:.2f}",
            "" if point["ratio"] is None else f"{point['ratio']:.2f}",
        )
        for point in report["points"]
    ]
    parts = [
        "# Speed of generation",
        f"Every contender generated {report['length']} tokens per sequence in {report['dtype']}. "
        f"{RANDOM_WEIGHTS if report['model'] is None else ''}Machine and libraries: {hardware}; {packages}. On this "
        f"machine, large matrix products reach {machine['flop_per_second'] / 1e9:.0f} GFLOP/s, and weights are read at "
        f"{machine['bytes_per_second'] / 1e9:.1f} GB/s. The floor is a lower bound on the time of the decoder at these "
        "rates: the time of its operations, or the time to read its weights and cache, whichever is longer.",
        f"```bash\n{report['command']}\n```",
        markdown_table(["contender", "parameters", "what it does"], contenders, "lrl"),
        "The contenders took turns. The seconds are those of the fastest round. The ratio is the time divided by the "
        "time of the decoder with the same number of steps (median over rounds). For contenders that choose their "
        "number of steps themselves, it is the time divided by the time of one-by-one. Not all contenders sample from "
        "the same distribution: with a given number of steps, the tokens of a step are drawn independently, and causal "
        "language models can only sample left to right.",
        markdown_table(["batch", "steps", "contender", "seconds", "relative to floor", "ratio"], rows, "rrlrrr"),
    ]
    if memory := report.get("memory"):
        sizes = ("cache_bytes", "modulation_bytes", "peak_bytes", "encoder_peak_bytes")
        rows = [(str(row["length"]), *(f"{row[name] / 1e6:.1f}" for name in sizes)) for row in memory]
        parts += [
            "The next table shows the memory of a generation of one sequence in MB, in addition to the weights. On a "
            "CPU, the decoder's peak includes a second copy of the weights, packed for oneDNN:",
            markdown_table(
                ["tokens", "keys and values", "modulation table", "decoder, peak", "encoder, peak"], rows, "rrrrr"
            ),
        ]
    return "\n\n".join(parts)


def _label(point: dict[str, Any]) -> str:
    return point["contender"] + (" (computed from fewer steps)" if point["is_computed"] else "")


def _plot_speed(points: list[dict[str, Any]], length: int, path: Path) -> None:
    """
    Plot time against the number of steps, with a panel for each batch size.

    Contenders that choose their number of steps themselves are horizontal lines.
    """
    batch_sizes = sorted({point["batch_size"] for point in points})
    figure = Figure(figsize=(4.4 + 4 * len(batch_sizes), 5), layout="constrained")
    all_axes = figure.subplots(1, len(batch_sizes), squeeze=False, sharey=True)[0]
    colors = {"decoder": BLUE, "encoder": ORANGE, "no-lemma": GREEN, "sedd": RED}
    points = [point for point in points if point["seconds"] is not None]
    names = list(dict.fromkeys(point["contender"] for point in points))
    others = iter(colormaps["tab20"].colors * len(names))
    styles = {name: (colors.get(name) or next(others), marker) for name, marker in zip(names, cycle(MARKERS))}
    for axes, batch_size in zip(all_axes, batch_sizes, strict=True):
        panel = [point for point in points if point["batch_size"] == batch_size]
        for name, (color, marker) in styles.items():
            line = [point for point in panel if point["contender"] == name]
            if line and line[0]["num_steps"] is None:
                axes.axhline(line[0]["seconds"], color=color, linestyle="--", linewidth=1.2, label=name)
            elif line:
                steps, seconds = zip(*((point["num_steps"], point["seconds"]) for point in line), strict=True)
                axes.plot(steps, seconds, color=color, marker=marker, markersize=5, label=name)
                computed = [(point["num_steps"], point["seconds"]) for point in line if point["is_computed"]]
                axes.plot(*zip(*computed, strict=True), linestyle="", color="white", marker=marker, markersize=2.5)
        steps = sorted({point["num_steps"] for point in panel if point["num_steps"]})
        floors = {point["num_steps"]: point["floor_seconds"] for point in panel}
        axes.plot(steps, [floors[count] for count in steps], color=GREY, linestyle=":", label="floor of this machine")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        _finish_axes(axes, f"batch {batch_size}, {length} tokens", "steps", steps)
    all_axes[0].set_ylabel("seconds")
    handles, labels = all_axes[0].get_legend_handles_labels()  # the smallest batch has all contenders
    title = "dashed: chooses its number of steps\nwhite dot: from fewer steps"
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8, title=title, title_fontsize=7)
    save_figure(figure, path)


def _plot_memory(memory: list[dict[str, Any]], path: Path) -> None:
    """Plot the memory of a generation against the number of tokens."""
    memory = sorted(memory, key=lambda row: row["length"])
    lengths = [row["length"] for row in memory]
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    for name, label, color in (
        ("encoder_peak_bytes", "encoder: peak, beside the weights", RED),
        ("peak_bytes", "decoder: peak, beside the weights", BLUE),
        ("modulation_bytes", "decoder: modulation table", ORANGE),
        ("cache_bytes", "decoder: keys and values", GREEN),
    ):
        axes.plot(lengths, [row[name] / 1e6 for row in memory], color=color, marker="o", markersize=5, label=label)
    ends = lengths[0] / 1.2, lengths[-1] * 1.2
    per_token = memory[0]["peak_bytes"] / 1e6 / lengths[0]
    axes.plot(ends, [per_token * end for end in ends], color=GREY, linestyle=":", label="slope of one")
    axes.set_ylabel("MB")
    axes.yaxis.set_major_formatter("{x:g}")
    _finish_axes(axes, "memory of a generation, batch 1", "tokens", lengths)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _finish_axes(axes: Axes, title: str, label: str, ticks: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    style_axes(axes, title)
