# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Report of `speed.py`: tables, a plot of time against steps (like Figure 5 of the paper), and a plot of memory."""

from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from common.files import write_json, write_text
from common.reports import BLUE, GREEN, GREY, ORANGE, RED, label_log_axis, markdown_table, save_figure, style_axes

# Color and marker of contenders that take a number of steps.
STYLES = {
    "decoder": (BLUE, "o"),
    "no-lemma": (GREEN, "s"),
    "no-cache": ("#7a4fa3", "D"),
    "encoder": (ORANGE, "^"),
    "sedd": (RED, "v"),
}
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
    Plot the times of each batch size in two panels.

    The left panel shows time against the number of steps. The right panel has a column for each contender that chooses
    its number of steps itself.
    """
    batch_sizes = sorted({point["batch_size"] for point in points})
    measured = [point for point in points if point["seconds"] is not None]
    slowest_first = sorted(measured, key=lambda point: -point["seconds"])
    names = list(dict.fromkeys(point["contender"] for point in slowest_first if point["num_steps"]))
    columns = list(dict.fromkeys(point["contender"] for point in measured if not point["num_steps"]))
    others = zip(cycle(("#1b9e9e", "#d6579b")), cycle("<>P"))
    styles = {name: STYLES.get(name) or next(others) for name in names}
    floor_style = {"color": GREY, "linestyle": ":"}
    widths = [4.2, 1 + 0.36 * len(columns)] * len(batch_sizes)
    figure = Figure(figsize=(0.8 + sum(widths), 5), layout="constrained")
    all_axes = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    for axes, own_axes, batch_size in zip(all_axes[::2], all_axes[1::2], batch_sizes, strict=True):
        floors = {point["num_steps"]: point["floor_seconds"] for point in points if point["batch_size"] == batch_size}
        own_floor, steps = floors.pop(None), sorted(floors)
        panel = [point for point in measured if point["batch_size"] == batch_size]
        for name, (color, marker) in styles.items():
            line = [(point["num_steps"], point["seconds"]) for point in panel if point["contender"] == name]
            axes.plot(*zip(*line, strict=True), color=color, marker=marker, markersize=6, label=name)
        computed = [(point["num_steps"], point["seconds"]) for point in panel if point["is_computed"]]
        axes.plot(*zip(*computed, strict=True), linestyle="", marker="o", color="white", markersize=2.5)
        axes.plot(steps, [floors[count] for count in steps], **floor_style, marker="_", label="floor of the decoder")
        for point in panel:
            if point["num_steps"] is None:
                place, seconds = columns.index(point["contender"]), point["seconds"]
                own_axes.plot(place, seconds, "o", color="black", markersize=5)
                own_axes.annotate(
                    f"{seconds:.3g}", (place, seconds), (0, 6), textcoords="offset points", ha="center", fontsize=8
                )
        own_axes.axhline(own_floor, **floor_style)
        _finish_axes(axes, f"batch {batch_size}, {length} tokens", "steps", steps)
        style_axes(own_axes, "")
        own_axes.set(xlabel="own number of steps", xlim=(-0.8, len(columns) - 0.2))
        own_axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    all_axes[0].set_ylabel("seconds")
    handles, labels = all_axes[0].get_legend_handles_labels()  # the smallest batch has all contenders
    style = {"ncols": 3, "frameon": False, "fontsize": 8, "title_fontsize": 8, "alignment": "left"}
    title = "white dot: computed from fewer steps" if any(point["is_computed"] for point in points) else None
    figure.legend(handles, labels, loc="outside upper left", title=title, **style)
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
    _finish_axes(axes, "memory of a generation, batch 1", "tokens", lengths)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _finish_axes(axes: Axes, title: str, label: str, ticks: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    label_log_axis(axes.yaxis)
    style_axes(axes, title)
