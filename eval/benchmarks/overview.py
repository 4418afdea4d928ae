# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Draw the overview in the README from the measured results in docs/results.

    python eval/benchmarks/overview.py [--results_dir DIR] [--output_dir DIR]

The command writes overview.png: Sudoku by order, a solved puzzle, the time of generation, and bits per byte in random
orders by training recipe.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.commands import Options, Parser, one_line_errors, option
from common.files import make_folder, read_json
from common.reports import BLUE, GREEN, GREY, ORANGE, label_log_axis, save_figure, style_axes
from eval.benchmarks.contenders import BLOCK_LENGTH
from eval.puzzles import draw_board
from eval.recipes import INK, draw_fraction, style_fractions

ROOT = Path(__file__).parents[2]

# Bars of the chart of solved puzzles: label, folder of results, recipe, decoding and color.
SOLVED = (
    ("AO-GPT, most certain\ncell first", "sudoku", "sudoku", "confidence", BLUE),
    ("the same model,\nleft to right", "sudoku", "sudoku", "left to right", BLUE),
    ("in a random order", "sudoku", "sudoku", "random", BLUE),
    ("GPT, trained\nleft to right", "sudoku", "sudoku_left_to_right", "left to right", GREY),
    ("encoder, most certain\ncell first", "sudoku_encoder", "sudoku_encoder", "confidence", ORANGE),
)
# Name of a contender in speed.json, its label and its style in the chart of times.
TIMES = (
    ("encoder", "encoder without a cache", {"color": ORANGE, "marker": "^"}),
    ("no-lemma", "AO-GPT, the most certain position first", {"color": GREEN, "marker": "s"}),
    ("confidence-blocks", "AO-GPT, the same in blocks of 32", {"color": GREEN, "marker": "D", "linestyle": "--"}),
    ("decoder", "AO-GPT, random order", {"color": BLUE, "marker": "o"}),
)
# Bars of the chart of recipes: label, arm, score and color.
RECIPES = (
    ("learned positions\n(as in the paper)", "learned", "any_order", BLUE),
    ("rotary positions", "rotary-adaln", "any_order", BLUE),
    ("rotary positions,\nleft-to-right start", "rotary-adaln-falling-to-tenth", "any_order", BLUE),
    ("left-to-right model,\nleft to right", "left-to-right", "left_to_right", GREY),
)


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/overview.py."""

    results_dir: Path = option(ROOT / "docs" / "results", "Folder with the measured results.")
    output_dir: Path = option(Path("runs/overview"), "Folder for overview.png.")


def draw_solved(axes: Axes, results: dict[str, dict[str, Any]]) -> None:
    """Draw the fraction of solved puzzles, from files of `eval/puzzles.py`."""
    for row, (_, folder, recipe, decoding, color) in enumerate(SOLVED):
        draw_fraction(axes, row, 0.8, color, results[folder]["summary"][recipe][decoding])
    style_fractions(axes, [label for label, *_ in SOLVED], "solved puzzles", results["sudoku"]["runs"])
    style_axes(axes, "6 x 6 Sudoku, by order")


def draw_times(axes: Axes, report: dict[str, Any]) -> None:
    """Draw seconds against steps, from a speed.json of `eval/benchmarks/speed.py`. Extrapolated times are white."""
    for name, label, style in TIMES:
        points = [point for point in report["points"] if point["contender"] == name and point["num_steps"]]
        if name == "confidence-blocks":  # with fewer steps, each step fills whole blocks, so the model chooses nothing
            points = [point for point in points if point["num_steps"] * BLOCK_LENGTH > report["length"]]
        steps, seconds = zip(*((point["num_steps"], point["seconds"]) for point in points), strict=True)
        axes.plot(steps, seconds, label=label, markersize=5, **style)
        computed = [(point["num_steps"], point["seconds"]) for point in points if point["is_computed"]]
        if computed:
            axes.plot(*zip(*computed, strict=True), "o", color="white", markersize=2.5)
    axes.set(xscale="log", yscale="log", xlabel="steps (white dot: extrapolated)", ylabel="seconds (one CPU core)")
    all_steps = sorted({point["num_steps"] for point in report["points"] if point["num_steps"]})
    axes.set_xticks(all_steps, all_steps)
    axes.minorticks_off()
    label_log_axis(axes.yaxis, (1,))
    axes.legend(frameon=False, fontsize=8)
    millions = report["contenders"]["decoder"]["num_parameters"] / 1e6
    style_axes(axes, f"Time to generate {report['length']} tokens ({millions:.0f} M parameters)")


def draw_recipes(axes: Axes, results: dict[str, Any]) -> None:
    """Draw bits per byte by training recipe, from a JSON file of `eval/benchmarks/study.py`."""
    for row, (_, arm, name, color) in enumerate(RECIPES):
        score = results["arms"][arm]["scores"][name]
        axes.barh(row, score["mean"], height=0.7, color=color)
        axes.plot(score["values"], [row] * len(score["values"]), "o", color=INK, markersize=2.5)
        axes.text(0.05, row, f"{score['mean']:.2f}", va="center", color="white", fontsize=9)
    axes.set_yticks(range(len(RECIPES)), [label for label, *_ in RECIPES])
    axes.invert_yaxis()
    axes.axvline(results["unigram"], color=GREY, linestyle=":")
    axes.text(
        results["unigram"] + 0.04,
        len(RECIPES) - 1,
        f"token\nfrequencies\n{results['unigram']:.2f}",
        va="center",
        fontsize=8,
    )
    axes.set_xlim(0, 3.4)
    axes.set_xlabel("bits per byte (blue: random orders; dots: seeds)")
    tokens = results["arms"]["learned"]["tokens"] / 1e6
    style_axes(axes, f"Bits per byte after {tokens:.1f} M tokens of source code")


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    folder = arguments.results_dir
    puzzles = {
        name: read_json(folder / name / "results.json", ("summary", "runs"), "eval/puzzles.py")
        for name in ("sudoku", "sudoku_encoder")
    }
    speed = read_json(folder / "speed" / "cpu_chosen_order" / "speed.json", ("points",), "eval/benchmarks/speed.py")
    study = read_json(folder / "study_gap" / "gap.json", ("arms", "unigram"), "eval/benchmarks/study.py")
    shown = puzzles["sudoku"]["runs"]["sudoku"][0]["shown"]
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    (solved, board), (times, recipes) = figure.subplots(2, 2)
    draw_solved(solved, puzzles)
    draw_board(board, shown, last_step=max(shown["steps"]))
    board.set_title("The order that the model chose", loc="left", fontsize=11)
    draw_times(times, speed)
    draw_recipes(recipes, study)
    with make_folder(arguments.output_dir):
        save_figure(figure, arguments.output_dir / "overview.png")
    print(f"Written: {arguments.output_dir / 'overview.png'}.")


if __name__ == "__main__":
    main(sys.argv[1:])
