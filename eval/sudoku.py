# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Fraction of held-out Sudoku puzzles that a model solves, by the order in which it fills in the cells.

    python eval/sudoku.py RUN [RUN ...] [--num_puzzles N] [--output_dir DIR]

RUN is a finished run on one of the Sudoku corpora (training/configs/sudoku.yaml or sudoku_left_to_right.yaml). Writes
results.json, sudoku.md, a chart next to a solved puzzle (sudoku.png), and the steps of its solution (sudoku.gif).
"""

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from common import sudoku
from common.commands import Options, Parser, one_line_errors, option
from common.files import write_json, write_text
from common.hardware import versions
from common.models import Model, load_model
from common.reports import BLUE, GREY, ORANGE, markdown_table, save_animation, save_figure, style_axes
from common.results import read_finished_run
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.tokenization import load_tokenizer

RANDOM = "random"
# Arguments of `generate` by name. Tokens are always the likeliest ones, and cells are filled in one at a time unless
# `unmasking` is given.
DECODINGS: dict[str, dict[str, Any]] = {
    "confidence": {"order": "confidence"},
    "margin": {"order": "margin"},
    "entropy": {"order": "entropy"},
    "threshold 0.9": {"unmasking": "threshold", "threshold": 0.9},
    RANDOM: {},  # an order tensor, in which the clues are from left to right
    "left to right": {"order": "left_to_right"},
}
PUZZLE_FIRST = "puzzle, then solution"  # decoding of a model that was trained left to right
SHOWN = "confidence"  # decoding of the puzzle in the picture
INK = "#22262a"

SUMMARY = """# Sudoku

{num_puzzles} held-out puzzles ({clues}; {mean_clues:.1f} clues on average), each with a unique solution. Their grids
differ from all training grids by more than the names of the digits. Tokens are the likeliest ones. A puzzle is solved
if all cells are right. Intervals (95 %, Wilson) are over puzzles.

![Solved puzzles, and one solution](sudoku.png)

{decodings}

Cells are filled in one at a time, in one of three kinds of orders: the cell of which the model is most certain first
(by confidence, margin or entropy), random, or left to right. With a threshold, each step fills in all cells of which
the model is certain enough. A model that was trained left to right reads the puzzle, and then writes the whole grid.

{runs}

The steps of a solution:

![Steps of a solution](sudoku.gif)
"""


@dataclass
class SudokuArguments(Options):
    """Options of eval/sudoku.py."""

    num_puzzles: int = option(500, "Number of puzzles.", least=1)
    num_clues: int | None = option(None, "Number of clues; by default, puzzles are minimal.", least=1)
    seed: int = option(0, "Seed of the random order.")
    output_dir: Path = option(
        Path("runs/sudoku/results"), "Folder for results.json, sudoku.md, sudoku.png, sudoku.gif."
    )


@dataclass
class Puzzles:
    """
    Puzzles with a unique solution.

    Attributes:
        size: Number of rows of a grid.
        pairs: Puzzles and solutions, as in `common/sudoku.py`.
    """

    size: int
    pairs: list[tuple[sudoku.Grid, sudoku.Grid]]

    def is_empty(self) -> torch.BoolTensor:
        """Return whether each cell is to be filled in, (puzzles, cells)."""
        return torch.tensor([puzzle for puzzle, _ in self.pairs]) == 0


def evaluate_run(folder: Path, arguments: SudokuArguments) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the results of a run, and the puzzle to show."""
    results, _ = read_finished_run(folder)
    corpus = results["arguments"]["corpus"][0]
    prefix, _, rest = corpus.partition("-")
    if prefix != "sudoku" or rest.split("-")[0] not in map(str, sudoku.BOXES):
        raise ValueError(
            f"A run must be trained on a Sudoku corpus, such as 'sudoku-6', but {folder} was trained on {corpus!r}. "
            "Use another run."
        )
    size, has_puzzles = int(rest.split("-")[0]), rest.endswith("puzzles")
    puzzles = Puzzles(size, sudoku.held_out_puzzles(size, arguments.num_puzzles, arguments.num_clues))
    model, tokenizer = load_model(folder / "model", dtype=torch.float32), load_tokenizer(folder / "model")
    inputs = encode_after_puzzles(puzzles, tokenizer) if has_puzzles else encode_in_place(puzzles, tokenizer)
    decodings = {PUZZLE_FIRST: {"order": "left_to_right"}} if has_puzzles else DECODINGS
    measured, shown = {}, None
    for name, settings in decodings.items():
        measured[name], output, is_solved = decode(model, inputs, puzzles, tokenizer, settings, arguments.seed)
        print(f"{folder} {name}: {measured[name]['solved']} of {len(puzzles.pairs)} puzzles", flush=True)
        if name == SHOWN and is_solved.any():
            number = int(is_solved.long().argmax())
            steps = output.unmasking_steps[number, : size * size].tolist()
            shown = {"size": size, "solution": puzzles.pairs[number][1], "steps": steps}
    facts = {"run": str(folder), "size": size, "corpus": corpus, "seed": results["arguments"]["seed"]}
    facts |= {name: results[name] for name in ("num_parameters", "steps", "tokens", "train_seconds")}
    return facts | {"decodings": measured}, shown


def encode_in_place(puzzles: Puzzles, tokenizer: PreTrainedTokenizerBase) -> torch.LongTensor:
    """Return the grids with masks in empty cells, and end-of-text, (puzzles, cells + 1)."""
    ids = _encode([sudoku.to_text(solution) for _, solution in puzzles.pairs], tokenizer)
    ids = ids.masked_fill(puzzles.is_empty(), tokenizer.mask_token_id)
    return torch.nn.functional.pad(ids, (0, 1), value=tokenizer.eos_token_id)


def encode_after_puzzles(puzzles: Puzzles, tokenizer: PreTrainedTokenizerBase) -> torch.LongTensor:
    """Return puzzles, each with "=" and as many masks as it has cells, (puzzles, 2 * cells + 1)."""
    ids = _encode([f"{sudoku.to_text(puzzle)}=" for puzzle, _ in puzzles.pairs], tokenizer)
    return torch.nn.functional.pad(ids, (0, puzzles.size**2), value=tokenizer.mask_token_id)


def _encode(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> torch.LongTensor:
    ids = tokenizer(texts)["input_ids"]
    if any(len(row) != len(text) for row, text in zip(ids, texts, strict=True)):
        raise ValueError(
            "Each cell must be one token, but the tokenizer merges several characters into one token. Train the model "
            "with `vocab_size` 257."
        )
    return torch.tensor(ids)


def decode(
    model: Model,
    inputs: torch.LongTensor,
    puzzles: Puzzles,
    tokenizer: PreTrainedTokenizerBase,
    settings: dict[str, Any],
    seed: int,
) -> tuple[dict[str, Any], AnyOrderGenerationOutput, torch.BoolTensor]:
    """Fill in the masks of all puzzles. Return the results, the output, and which puzzles are solved."""
    if not settings:
        settings = {"order": random_order(inputs == tokenizer.mask_token_id, seed)}
    started = time.perf_counter()
    output = model.generate(inputs, do_sample=False, stop_at_eos=None, return_dict_in_generate=True, **settings)
    seconds = time.perf_counter() - started
    solutions = _encode([sudoku.to_text(solution) for _, solution in puzzles.pairs], tokenizer)
    start = inputs.shape[1] - solutions.shape[1] if inputs.shape[1] > 2 * puzzles.size**2 else 0
    is_solved = (output.sequences[:, start : start + solutions.shape[1]] == solutions).all(dim=1)
    # A puzzle takes part in a forward pass if the pass fills in one of its cells.
    num_passes = [len(steps[steps >= 0].unique()) for steps in output.unmasking_steps]
    count, total = int(is_solved.sum()), len(puzzles.pairs)
    results = {
        "solved": count,
        "puzzles": total,
        "fraction": count / total,
        "interval": wilson_interval(count, total),
        "passes_per_puzzle": sum(num_passes) / total,
        "seconds_per_puzzle": round(seconds / total, 5),
    }
    return results, output, is_solved


def random_order(is_masked: torch.BoolTensor, seed: int) -> torch.LongTensor:
    """Return orders (batch, n): the unmasked positions from left to right, then the masks in random order."""
    keys = torch.rand(is_masked.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    positions = torch.arange(is_masked.shape[1]) - is_masked.shape[1]
    return torch.where(is_masked, keys, positions.double()).argsort(dim=1)


def wilson_interval(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a fraction."""
    fraction, scale = count / total, 1 + z**2 / total
    center = (fraction + z**2 / (2 * total)) / scale
    half = z / scale * math.sqrt(fraction * (1 - fraction) / total + z**2 / (4 * total**2))
    return max(center - half, 0.0), min(center + half, 1.0)


# ------------------------------------------------------------------------------------------------------------- report


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    rows = [
        (
            run["run"],
            name,
            f"{measured['fraction']:.1%}",
            "{:.1%} to {:.1%}".format(*measured["interval"]),
            f"{measured['passes_per_puzzle']:.1f}",
            f"{1000 * measured['seconds_per_puzzle']:.1f}",
        )
        for run in results["runs"]
        for name, measured in run["decodings"].items()
    ]
    runs = [
        (
            run["run"],
            run["corpus"],
            str(run["seed"]),
            f"{run['num_parameters']:,}",
            f"{run['steps']:,}",
            f"{run['tokens']:,}",
            f"{run['train_seconds'] / 60:.0f}",
        )
        for run in results["runs"]
    ]
    clues = "minimal" if results["num_clues"] is None else f"with {results['num_clues']} clues"
    return SUMMARY.format(
        num_puzzles=results["num_puzzles"],
        clues=clues,
        mean_clues=results["mean_clues"],
        decodings=markdown_table(
            ["run", "order", "solved", "interval", "passes per puzzle", "ms per puzzle"], rows, align="llrrrr"
        ),
        runs=markdown_table(
            ["run", "corpus", "seed", "parameters", "steps", "tokens", "minutes of training"], runs, align="llrrrrr"
        ),
    )


def plot_results(results: dict[str, Any], shown: dict[str, Any] | None, path: Path) -> None:
    """Draw a chart of the fractions, next to the solution that is shown."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    chart, board = figure.subplots(1, 2, width_ratios=(1.25, 1))
    names = list(dict.fromkeys(name for run in results["runs"] for name in run["decodings"]))
    total = results["num_puzzles"]
    for row, name in enumerate(names):
        fractions = [run["decodings"][name]["fraction"] for run in results["runs"] if name in run["decodings"]]
        mean = sum(fractions) / len(fractions)
        low, high = wilson_interval(round(mean * total), total)
        color = GREY if name == PUZZLE_FIRST else ORANGE if name in (RANDOM, "left to right") else BLUE
        error = [[mean - min(low, mean)], [max(high, mean) - mean]]
        chart.barh(row, mean, color=color, height=0.7, xerr=error, error_kw={"ecolor": INK, "capsize": 3})
        if len(fractions) > 1:
            chart.plot(fractions, [row] * len(fractions), "o", color=INK, markersize=3)
        chart.text(max(high, mean) + 0.02, row, f"{mean:.0%}", va="center", color=INK)
    labels = ["trained left to right:\npuzzle, then solution" if name == PUZZLE_FIRST else name for name in names]
    chart.set_yticks(range(len(names)), labels)
    chart.invert_yaxis()
    chart.set_xlim(0, 1.15)
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    style_axes(chart, f"Solved {results['runs'][0]['size']} x {results['runs'][0]['size']} puzzles, by decoding order")
    board.set_axis_off()
    if shown is not None:
        draw_board(board, shown, last_step=max(shown["steps"]))
        board.set_title("The order that the model chose", loc="left", fontsize=11)
    save_figure(figure, path)


def draw_board(axes: Axes, shown: dict[str, Any], last_step: int) -> None:
    """Draw the cells that are filled in up to a step: clues in black, others by step, with its number."""
    size, steps = shown["size"], shown["steps"]
    height, width = sudoku.BOXES[size]
    axes.clear()
    axes.set(xlim=(-0.1, size + 0.1), ylim=(size + 0.1, -0.1), aspect="equal")
    axes.set_axis_off()
    for cell, (digit, step) in enumerate(zip(shown["solution"], steps, strict=True)):
        row, column = divmod(cell, size)
        if step > last_step:
            continue
        color = INK if step < 0 else colormaps["plasma"](0.05 + 0.75 * step / max(*steps, 1))
        if step >= 0:
            axes.fill_between([column, column + 1], row, row + 1, color=color, alpha=0.16, linewidth=0)
            axes.text(column + 0.93, row + 0.2, str(step + 1), ha="right", va="center", fontsize=7, color=color)
        weight = "bold" if step < 0 else "normal"
        axes.text(
            column + 0.5, row + 0.53, str(digit), ha="center", va="center", fontsize=18, color=color, weight=weight
        )
    for line in range(size + 1):
        axes.plot([0, size], [line, line], color=INK, linewidth=2 if line % height == 0 else 0.5)
        axes.plot([line, line], [0, size], color=INK, linewidth=2 if line % width == 0 else 0.5)


def animate(shown: dict[str, Any], path: Path) -> None:
    """Write an animation of the steps."""
    figure = Figure(figsize=(3.2, 3.2), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    save_animation(figure, lambda step: draw_board(axes, shown, step), range(-1, max(shown["steps"]) + 1), 0.35, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(SudokuArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs on a Sudoku corpus.")
    arguments, others = parser.parse(argv)
    evaluated = [evaluate_run(folder, arguments) for folder in others.runs]
    runs = [run for run, _ in evaluated]
    if len({run["size"] for run in runs}) > 1:
        raise ValueError("All runs must have grids of the same size, but they differ. Evaluate the runs one by one.")
    pairs = sudoku.held_out_puzzles(runs[0]["size"], arguments.num_puzzles, arguments.num_clues)
    results = {
        "num_puzzles": arguments.num_puzzles,
        "num_clues": arguments.num_clues,
        "mean_clues": sum(clue > 0 for puzzle, _ in pairs for clue in puzzle) / len(pairs),
        "num_threads": torch.get_num_threads(),
        "runs": runs,
        "versions": versions(),
    }
    shown = next((shown for _, shown in evaluated if shown is not None), None)
    folder = arguments.output_dir
    plot_results(results, shown, folder / "sudoku.png")
    if shown is not None:
        animate(shown, folder / "sudoku.gif")
    report = make_report(results)
    write_json(folder / "results.json", results | {"shown": shown})
    write_text(folder / "sudoku.md", report)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:])
