# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The quickstart's report as one picture: the loss, bits per byte, infills and samples."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common.reports import BLUE, GREY, ORANGE, save_figure, style_axes
from eval.infilling import printable

INK, PALE, GREEN = "#22262a", "#d5d8dc", "#2c8a3d"
WIDTH, HEIGHT, DOTS_PER_INCH = 12.0, 7.7, 150
# Of the text panels: DejaVu Sans Mono, which matplotlib carries, in the size at which a character is 11 dots wide.
CHARACTER_WIDTH = 11 / DOTS_PER_INCH  # inches
FONT_SIZE = 72 * CHARACTER_WIDTH / 0.602  # points
LINE_HEIGHT = 1.55 * FONT_SIZE / 72  # inches
BEFORE, AFTER = 42, 59  # columns that the two sides of an infill have
NUM_LINES = 16
REMARKS = {"exact": "✓ as it was", "held_out": "✓ a held-out name", "train": "✓ a training name", "new": ""}


def draw_report(report: dict[str, Any], path: Path) -> None:
    """Draw the figures and examples of `make_report`."""
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="white")
    draw_loss(figure.add_axes((0.055, 0.625, 0.37, 0.30)), report)
    draw_bits_per_byte(figure.add_axes((0.65, 0.58, 0.30, 0.345)), report["bits_per_byte"])
    draw_infills(figure, report["infilling"])
    draw_samples(figure, report["samples"])
    save_figure(figure, path, DOTS_PER_INCH)


def write_title(axes: Axes, text: str, remark: str = "") -> None:
    axes.set_title(text, loc="left", fontsize=11, color=INK, fontweight="bold", pad=24 if remark else 10)
    axes.annotate(remark, (0, 1), (0, 9), "axes fraction", textcoords="offset points", fontsize=9, color=GREY)


def draw_loss(axes: Axes, report: dict[str, Any]) -> None:
    curve, run = report["loss_curve"], report["run"]
    axes.plot(curve["step"], curve["loss"], color=BLUE, linewidth=1.4)
    size = f"{run['num_parameters'] / 1e6:.1f} M parameters, {run['train_seconds'] / 60:.1f} minutes"
    write_title(axes, f"Training loss ({size})")
    axes.set_xlabel("step")
    axes.set_ylabel("nats per token")
    axes.set_xlim(0, run["steps"])
    axes.set_ylim(0, None)
    style_axes(axes)


def draw_bits_per_byte(axes: Axes, bits: dict[str, float]) -> None:
    bars = {
        "model, left to right": (bits["left_to_right"], BLUE),
        "model, random orders": (bits["any_order"], ORANGE),
        "xz, after the training names": (bits["xz_after_training"], PALE),
        "xz": (bits["xz"], PALE),
        "zlib": (bits["zlib"], PALE),
    }
    values, colors = zip(*bars.values(), strict=True)
    drawn = axes.barh(list(bars), values, color=colors, height=0.72)
    axes.bar_label(drawn, fmt="%.2f", padding=4, fontsize=10, color=INK)
    axes.invert_yaxis()
    write_title(axes, "Bits per byte of held-out names")
    axes.set_xlim(0, 1.12 * max(values))
    axes.xaxis.set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.spines[:].set_visible(False)


def draw_infills(figure: Figure, infilling: dict[str, Any]) -> None:
    names = {"letters": "LETTER _ WITH _", "words": "one or two words"}
    remark = "; ".join(
        f"{names[sort]}: {group['shares']['exact']:.0%} as it was, {share_of_names(group):.0%} another name"
        for sort, group in infilling.items()
    )
    axes = text_axes(figure, 0.03, 0.64, "Held-out names with hidden words (_ per token), filled in", remark)
    shown = [
        example
        for group in infilling.values()
        for example in list(filter(fits, group["examples"]))[: NUM_LINES // len(infilling)]
    ]
    for line, example in enumerate(shown):
        draw_line(axes, line, 0, [(example["before"], False)], GREY)
        end = draw_line(axes, line, BEFORE, example["after"], INK)
        draw_line(axes, line, end + 2, [(REMARKS[example["kind"]], False)], GREEN)


def fits(example: dict[str, Any]) -> bool:
    after = "".join(text for text, _ in example["after"])
    return len(example["before"]) < BEFORE and len(after) + len(REMARKS[example["kind"]]) + 2 < AFTER


def draw_samples(figure: Figure, samples: dict[str, Any]) -> None:
    held_out = samples["shares"]["held_out"]
    remark = f"{share_of_names(samples):.0%} of {samples['count']} are real names ({held_out:.1%} held out)"
    axes = text_axes(figure, 0.70, 0.29, "Names that the model made up", remark)
    for line, example in enumerate(samples["examples"][:NUM_LINES]):
        draw_line(axes, line, 0, [(example["text"], False)], INK if example["kind"] == "new" else GREEN)


def share_of_names(group: dict[str, Any]) -> float:
    return group["shares"]["held_out"] + group["shares"]["train"]


def text_axes(figure: Figure, left: float, width: float, title: str, remark: str) -> Axes:
    """Return axes whose unit is a character to the right and a line down."""
    bottom, height = 0.015, 0.435
    axes = figure.add_axes((left, bottom, width, height))
    axes.set_xlim(0, width * WIDTH / CHARACTER_WIDTH)
    axes.set_ylim(height * HEIGHT / LINE_HEIGHT, -0.5)
    axes.set_axis_off()
    write_title(axes, title, remark)
    return axes


def draw_line(axes: Axes, line: int, column: int, spans: Iterable[tuple[str, bool]], color: str) -> int:
    """Write pieces of text one after another, those of the model on a coloured ground, and return the next column."""
    style = {"family": "DejaVu Sans Mono", "fontsize": FONT_SIZE, "va": "center_baseline"}
    for text, is_filled in spans:
        word = text.strip() or text
        if is_filled:
            start = column + text.index(word) - 0.1
            axes.add_patch(
                Rectangle((start, line - 0.42), len(word) + 0.2, 0.84, color=ORANGE, alpha=0.25, linewidth=0)
            )
        axes.text(column, line, printable(text), color=color, clip_on=True, parse_math=False, **style)
        column += len(text)
    return column
