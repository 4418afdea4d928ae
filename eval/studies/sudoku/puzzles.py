# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Fraction of held-out puzzles that models solve, by the order in which they fill in the missing tokens.

    python eval/studies/sudoku/puzzles.py RUN [RUN ...] [--num_puzzles N] [--include RESULTS] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py, of a decoder or an encoder, on a corpus of Sudoku or of
path-star graphs. Runs that differ only in the seed form a recipe. Their folders must have the same name, except for
`-SEED` at the end. The command writes results.json, a report (sudoku.md or path-star.md) and a chart (.png). For
Sudoku, the chart is next to a solved puzzle, and sudoku.gif shows in which steps the puzzle was solved.
"""

import math
import re
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.corpora import find_maker
from common.files import make_folder, read_json, write_json, write_text
from common.hardware import default_device, device_name, versions
from common.models import Model, load_model
from common.reports import markdown_table, save_animation, save_figure, style_axes
from common.results import check_is_no_run
from eval.studies.corpora import path_star
from eval.studies.runner.recipes import (
    COLORS,
    INK,
    describe_recipe,
    draw_fraction,
    encode_problems,
    format_fraction,
    group_by_recipe,
    read_run,
    recipe_name,
    recipe_table,
    style_fractions,
    summarize_fractions,
)
from eval.studies.sudoku import corpus as sudoku
from modeling_aogpt.decoding_state import CachedDecodingState, QueryResult
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.orders import random_orders
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.validation import check_choice

# Arguments of `generate`, by name. By default, one token is filled in per step, and it is the likeliest one. Two keys
# are not arguments of `generate`: `best_of` is the number of generated solutions, of which the likeliest counts (see
# `likeliest`), and without `has_cache`, each step reads all known tokens again (see `LeftToRightContext`).
DECODINGS: dict[str, dict[str, Any]] = {
    "confidence": {"order": "confidence"},
    "margin": {"order": "margin"},
    "entropy": {"order": "entropy"},
    "threshold 0.9": {"unmasking": "threshold", "threshold": 0.9},
    "confidence, no cache": {"has_cache": False, "order": "confidence"},
    "threshold 0.9, no cache": {"has_cache": False, "unmasking": "threshold", "threshold": 0.9},
    "confidence, refined": {"order": "confidence", "refine_rounds": 4, "refine_selection": "least_likely"},
    "confidence, sampled": {"order": "confidence", "do_sample": True},
    "confidence, best of 16": {"order": "confidence", "do_sample": True, "best_of": 16},
    "random": {"order": "random"},
    "random, sampled": {"order": "random", "do_sample": True},
    "random, speculative": {"order": "random", "do_sample": True, "strategy": "speculative"},
    "left to right": {"order": "left_to_right"},
    "left to right, sampled": {"order": "left_to_right", "do_sample": True},
    "left to right, best of 16": {"order": "left_to_right", "do_sample": True, "best_of": 16},
}
SHOWN = "confidence"  # the picture shows a puzzle that this decoding solved
SAME = ("num_puzzles", "num_clues", "seed")  # options in which results must agree to be compared
# Names of the corpora of puzzles.
CORPORA = [
    f"{module.__name__}:{name}"
    for module in (sudoku, path_star)
    for name, value in vars(module).items()
    if isinstance(value, partial)
]
# Descriptions of the puzzles for the report.
TASKS = {
    "sudoku": "Sudoku puzzles ({clues}), each with a unique solution. No solution is a\n"
    "training grid with other names of the digits. Other symmetries are not excluded",
    "path-star": "[path-star graphs](https://arxiv.org/abs/2403.06963). A text lists the edges\n"
    "of a graph, then the first and the last node of a path, then all nodes of this path, which are missing. The\n"
    "training texts do not contain these graphs",
}

SUMMARY = """# {title}

{num_puzzles} held-out {task}.
On average, {missing:.1f} {unit} are missing. A puzzle is solved if all of them are right.

![Solved puzzles]({name}.png)

{decodings}

"Solved" is the fraction of solved puzzles. If a recipe has several seeds, it is their mean, and "seeds" is their range.
"Interval" is a 95 % confidence interval (Wilson). It shows how much "solved" depends on the choice of the puzzles, and
is computed as if all of them had been solved by a single run.

A step fills in one position with its likeliest token, unless said otherwise below.
Times are those of one run {device}. They are longer if other programs use the same cores.

{explanations}

{recipes}
"""
# Explanations for the report. An explanation is in the report if its key, a regular expression, matches a part of the
# name of a decoding or of a corpus.
EXPLANATIONS = {
    "confidence|margin|entropy": "*Confidence*, *margin* and *entropy*: a step fills in the position of which the\n"
    "  model is most certain by this measure.",
    "threshold": "*Threshold 0.9*: a step fills in all positions whose likeliest token has a probability of at least\n"
    "  0.9. If there is none, it fills in the position of which the model is most certain.",
    "random|left to right": "*Random* and *left to right*: the order of the positions does not depend on the model.",
    "no cache": "*No cache*: each step reads all known tokens again, from left to right. With the cache, a token is\n"
    "  read once, after those that were filled in before it.",
    "refined": "*Refined*: then, in each of four rounds, about a third of the tokens (those with the lowest\n"
    "  probabilities) are masked and filled in again.",
    "sampled": "*Sampled*: tokens are drawn at temperature 1.",
    "best of 16": "*Best of 16*: the model samples 16 solutions. The one with the highest likelihood given the puzzle\n"
    "  counts, under the same model, in a random order or left to right. The time includes the computation of these\n"
    "  likelihoods. The number of passes does not include it.",
    "speculative": "*Speculative*: exactly the same distribution of tokens as *random, sampled*, in fewer passes.",
    "sudoku_6": "Most solutions become a training grid (with other names of the digits) if two rows of a box are\n"
    "  exchanged.",
    "_puzzles": "Models trained on `sudoku_N_puzzles` read the puzzle, and then write the solution from left to\n"
    "  right. After as many tokens, they have seen half as many solutions as a model of grids, because half of their\n"
    "  tokens are puzzles.",
    "_moves": "Models trained on `sudoku_N_moves` read the puzzle, and then write the missing cells. They are trained\n"
    "  in the order of a solver that fills in the easiest cells first. A cell is three tokens: row, column and digit.\n"
    "  After as many tokens, they have seen less than a third as many solutions as a model of grids. A puzzle is\n"
    "  solved if all cells are right, in any order.",
}
SOLUTION = """
The steps of a solution:

![Steps of a solution](sudoku.gif)
"""


@dataclass
class PuzzleArguments(Options):
    """Options of eval/studies/sudoku/puzzles.py."""

    num_puzzles: int = option(500, "Number of puzzles.", least=1)
    num_clues: int | None = option(
        None,
        "Number of clues in Sudoku. By default, puzzles are minimal: each clue is needed for a unique solution.",
        least=1,
    )
    decodings: list[str] = option(
        [], f"Decoding methods, from {', '.join(map(repr, DECODINGS))}; by default all that are possible for the model."
    )
    seed: int = option(0, "Seed of random orders and sampled tokens.")
    include: Path | None = option(
        None, "results.json of an earlier call with the same puzzles. Its runs are in the report, too."
    )
    output_dir: Path = option(Path("runs/puzzles"), "Folder for results.json, the report and pictures.")


# ----------------------------------------------------------------------------------------------------------- decoding


def solve(run: dict[str, Any], options: PuzzleArguments) -> dict[str, Any]:
    """Solve the held-out puzzles with each decoding method. Return the results, and a solved puzzle for the picture."""
    settings, folder = run["arguments"], Path(run["run"]) / "model"
    texts = make_puzzles(settings["corpus"][0], options.num_puzzles, options.num_clues)
    model, tokenizer = load_model(folder, dtype=torch.float32).to(default_device()), load_tokenizer(folder)
    has_prompt = "=" in texts[0][0]  # PROMPT=SOLUTION
    check_characters(texts, tokenizer)
    problems = encode_problems(texts, tokenizer, None if has_prompt else settings["sequence_length"])
    inputs, solutions = (ids.to(model.device) for ids in problems)
    moves_start = texts[0][0].index("=") + 1 if settings["corpus"][0].endswith("_moves") else None
    measured, shown = {}, None
    for name in decodings_of(settings, options.decodings):
        measured[name], is_solved, steps = decode(model, inputs, solutions, name, options.seed, moves_start)
        print(f"{run['run']} {name}: {int(is_solved.sum())} of {len(texts)} puzzles", flush=True)
        if name == SHOWN and not has_prompt and is_solved.any():
            number = int(is_solved.long().argmax())
            shown = {"solution": texts[number][1], "steps": steps[number].tolist()}
    return {"decodings": measured, "shown": shown}


def read_included(options: PuzzleArguments) -> tuple[str, list[dict[str, Any]]]:
    """
    Return the command and the runs of the results `options.include`.

    Raises:
        ValueError: If these are the results of other puzzles, threads or GPUs, so they cannot be compared.
    """
    results = read_json(options.include, ("command", *SAME, "num_threads", "runs"), "eval/studies/sudoku/puzzles.py")
    current = {name: getattr(options, name) for name in SAME}
    current |= {"num_threads": torch.get_num_threads(), "gpu": name_of_gpu()}
    for name, here in current.items():
        if (earlier := results.get(name)) != here:
            raise ValueError(
                f"`{name}` must be {earlier}, as in {options.include}, but is {here}."
                + (f" Set the environment variable OMP_NUM_THREADS={earlier}." if name == "num_threads" else "")
            )
    return results["command"], [run for runs in results["runs"].values() for run in runs]


def check_decodings(included: list[dict[str, Any]], runs: list[dict[str, Any]], chosen: list[str]) -> None:
    """
    Raise a `ValueError` unless each run has a decoding, and runs of a recipe have the same ones.

    The decodings of `runs` are not yet measured. `chosen` are those that the user chose, or empty.
    """
    for run in runs:
        if not decodings_of(run["arguments"], chosen):
            raise ValueError(
                f"{run['run']} supports none of the `decodings` ({', '.join(chosen)}). Add one of "
                f"{', '.join(decodings_of(run['arguments'], []))}, or leave out the run."
            )
    for run, other in product(included, runs):
        expected = decodings_of(other["arguments"], chosen)
        if recipe_name(run) == recipe_name(other) and [*run["decodings"]] != expected:
            raise ValueError(
                f"The included results have the decodings {', '.join(run['decodings'])} of {run['run']}, but "
                f"{', '.join(expected)} would be measured for {other['run']}. Set `decodings` to those of the included "
                "results."
            )


def name_of_gpu() -> str | None:
    """Return the name of the GPU on which puzzles are solved, or None for the CPU."""
    device = default_device()
    return None if device.type == "cpu" else device_name(device)


@cache  # all runs solve the same puzzles
def make_puzzles(corpus: str, num_puzzles: int, num_clues: int | None) -> list[tuple[str, str]]:
    """Return the held-out puzzles of a corpus: texts with `_` for each missing character, and the texts filled in."""
    options = find_maker(corpus).args
    if corpus.startswith(sudoku.__name__):
        return sudoku.held_out_texts(*options, num_puzzles, num_clues)
    if num_clues is not None:
        raise ValueError(f"`num_clues` can only be set for Sudoku, but the corpus is {corpus!r}. Remove it.")
    return path_star.held_out_texts(*options, num_puzzles)


def decodings_of(arguments: dict[str, Any], chosen: list[str]) -> list[str]:
    """
    Return the names of the decoding methods that are possible for a run with these training arguments.

    If `chosen` is not empty, the others are left out.
    """
    possible = {name: settings for name, settings in DECODINGS.items() if not chosen or name in chosen}
    if arguments["orders"] == "left_to_right":
        return [name for name, settings in possible.items() if settings.get("order") == "left_to_right"]
    is_decoder = arguments["architecture"] == "decoder"
    only_for_decoders = {"strategy", "has_cache"}
    return [name for name, settings in possible.items() if is_decoder or only_for_decoders.isdisjoint(settings)]


def check_characters(texts: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` unless each character of the solutions is one token."""
    solutions = [solution for _, solution in texts]
    encoded = tokenizer(solutions, add_special_tokens=False)["input_ids"]
    if list(map(len, encoded)) != list(map(len, solutions)):
        raise ValueError(
            "Each character must be one token, but the tokenizer merges several characters into one token. Train the "
            "model with `vocab_size` 257 (256 bytes and end-of-text)."
        )


def decode(
    model: Model,
    inputs: torch.LongTensor,
    solutions: torch.LongTensor,
    name: str,
    seed: int,
    moves_start: int | None = None,
) -> tuple[dict[str, float], torch.BoolTensor, torch.LongTensor]:
    """
    Fill in the masks of all puzzles.

    A puzzle is solved if all tokens are right. If solutions are moves, which start at the position `moves_start`, the
    moves may be in another order.

    Returns:
        The results of the decoding, whether each puzzle is solved (puzzles,), and the step at which each token was
        filled in (puzzles, n), which is negative for tokens of the puzzle.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = {"do_sample": False} | DECODINGS[name]
    is_masked = inputs != solutions
    if "refine_rounds" in settings:
        settings["refine_length"] = max(int(is_masked.sum(dim=1).min()) // 3, 1)
    settings |= {"return_dict_in_generate": True, "output_history": True}
    best_of, has_cache = settings.pop("best_of", 1), settings.pop("has_cache", True)
    started = time.perf_counter()
    with nullcontext() if has_cache else patch.object(model, "decoding_state_class", LeftToRightContext):
        outputs = [model.generate(inputs, generator=generator, **settings) for _ in range(best_of)]
    chosen = likeliest(model, outputs, is_masked, settings["order"], generator) if best_of > 1 else outputs[0].sequences
    chosen, solutions = chosen.cpu(), solutions.cpu()  # waits for a GPU, so the time is that of the whole computation
    seconds = time.perf_counter() - started
    if moves_start is not None:
        chosen, solutions = (_sort_moves(ids, moves_start) for ids in (chosen, solutions))
    is_solved = (chosen == solutions).all(dim=1)
    results = {
        "solved": is_solved.double().mean().item(),
        "passes_per_puzzle": sum(map(passes_per_puzzle, outputs)),
        "seconds_per_puzzle": round(seconds / len(inputs), 5),
    }
    return results, is_solved, outputs[0].unmasking_steps


class LeftToRightContext(CachedDecodingState):
    """Decoding state of a decoder that reads all known tokens again in each step, from left to right."""

    def query(self, num_queries: torch.LongTensor) -> QueryResult:
        """Predict masked ranks (see [`DecodingState.query`])."""
        ranks = torch.arange(self.ids.shape[1], device=self.ids.device)
        is_context = self.ranks_between(torch.zeros_like(self.num_context), self.num_context)
        self.reorder(torch.where(is_context, self.orders, len(ranks) + ranks).argsort(dim=1))
        self.num_cached.zero_()
        return super().query(num_queries)


def _sort_moves(sequences: torch.LongTensor, start: int) -> torch.LongTensor:
    """Return the moves (three tokens each) of each sequence (puzzles, n) as numbers, in increasing order."""
    moves = sequences[:, start:].unflatten(1, (-1, 3))
    return (moves[..., 0] << 40 | moves[..., 1] << 20 | moves[..., 2]).sort(dim=1).values


def likeliest(
    model: Model,
    outputs: list[AnyOrderGenerationOutput],
    is_masked: torch.BoolTensor,
    order: str,
    generator: torch.Generator,
) -> torch.LongTensor:
    """
    Return, for each puzzle, the sequence with the highest log p(missing tokens | puzzle) among all outputs.

    All candidates of a puzzle are scored in the same order: from left to right, or in a random order.
    """
    candidates = torch.stack([output.sequences for output in outputs])
    orders = "left_to_right" if order == "left_to_right" else random_orders(*is_masked.shape, generator=generator)
    scores = [
        model.conditional_log_likelihood(sequences, is_masked, orders=orders, generator=generator).log_likelihood
        for sequences in candidates
    ]
    return candidates[torch.stack(scores).argmax(dim=0), torch.arange(len(is_masked), device=is_masked.device)]


def passes_per_puzzle(output: AnyOrderGenerationOutput) -> float:
    """Return the mean number of passes of a puzzle. A puzzle takes part in the passes of the steps that change it."""
    num_steps = (output.history[1:] != output.history[:-1]).any(dim=2).sum(dim=0).double().mean().item()
    return num_steps * output.num_forward_passes / (len(output.history) - 1)


def summarize(runs: list[dict[str, Any]], num_puzzles: int) -> dict[str, dict[str, Any]]:
    """Return, for each decoding, means over the runs, the fraction solved by each run, and the confidence interval."""
    summary = {}
    for name in runs[0]["decodings"]:
        measured = [run["decodings"][name] for run in runs]
        summary[name] = {key: fmean(values[key] for values in measured) for key in measured[0]}
        summary[name] |= summarize_fractions([values["solved"] for values in measured], num_puzzles)
    return summary


# ------------------------------------------------------------------------------------------------------------- report


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    decodings = [
        (
            recipe,
            name,
            *format_fraction(values),
            f"{values['passes_per_puzzle']:.1f}",
            f"{1000 * values['seconds_per_puzzle']:.1f}",
        )
        for recipe, summary in results["summary"].items()
        for name, values in summary.items()
    ]
    corpora = {run["arguments"]["corpus"][0] for runs in results["runs"].values() for run in runs}
    names = {name for summary in results["summary"].values() for name in summary} | corpora
    explained = [text for key, text in EXPLANATIONS.items() if any(re.search(key, name) for name in names)]
    return SUMMARY.format(
        explanations="\n".join(f"* {text}" for text in explained),
        title=results["puzzles"],
        name=results["task"],
        num_puzzles=results["num_puzzles"],
        task=TASKS[results["task"]].format(
            clues=f"{results['num_clues']} clues" if results["num_clues"] else "minimal: no clue can be removed"
        ),
        missing=results["mean_missing"],
        unit="cells" if results["task"] == "sudoku" else "tokens",
        device=f"on one {gpu}" if (gpu := results["gpu"]) else f"with {results['num_threads']} CPU thread(s)",
        decodings=markdown_table(
            ["recipe", "order", "solved", "seeds", "interval", "passes per puzzle", "ms per puzzle"],
            decodings,
            align="llrrrrr",
        ),
        recipes=recipe_table(results["runs"]),
    )


def plot_results(results: dict[str, Any], shown: dict[str, Any] | None, path: Path) -> None:
    """Draw a bar chart of the fractions of solved puzzles and, if `shown` is given, this Sudoku next to it."""
    names = [name for name in DECODINGS if any(name in summary for summary in results["summary"].values())]
    figure = Figure(figsize=(10, max(1.5 + 0.42 * len(names), 5 if shown else 0)), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(1.25, 1))
    chart = figure.add_subplot(grid[0] if shown else grid[:])
    height = 0.85 / len(results["summary"])
    for number, (recipe, summary) in enumerate(results["summary"].items()):
        color = COLORS[number % len(COLORS)]
        for name, values in summary.items():
            recipes = [recipe for recipe, others in results["summary"].items() if name in others]
            row = names.index(name) + height * (recipes.index(recipe) - (len(recipes) - 1) / 2)
            draw_fraction(chart, row, height, color, values)
        chart.barh(0, 0, color=color, label=describe_recipe(recipe, results["runs"][recipe]))
    style_fractions(chart, names, "solved puzzles", results["runs"])
    figure.legend(*chart.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    style_axes(chart, f"Solved puzzles ({results['puzzles']}), by decoding order")
    if shown is not None:
        board = figure.add_subplot(grid[1])
        draw_board(board, shown, last_step=max(shown["steps"]))
        board.set_title("The order that the model chose\n(small numbers: steps)", loc="left", fontsize=11)
    save_figure(figure, path)


def draw_board(axes: Axes, shown: dict[str, Any], last_step: int) -> None:
    """Draw a Sudoku after `last_step`: clues in black, other cells with the color and the number of their step."""
    size, steps = math.isqrt(len(shown["solution"])), shown["steps"]
    height, width = sudoku.BOXES[size]
    axes.clear()
    axes.set(xlim=(-0.1, size + 0.1), ylim=(size + 0.1, -0.1), aspect="equal")
    axes.set_axis_off()
    for cell, (digit, step) in enumerate(zip(shown["solution"], steps, strict=False)):
        row, column = divmod(cell, size)
        if step > last_step:
            continue
        color = INK if step < 0 else colormaps["plasma"](0.05 + 0.75 * step / max(*steps, 1))
        if step >= 0:
            axes.fill_between([column, column + 1], row, row + 1, color=color, alpha=0.16, linewidth=0)
            axes.text(column + 0.93, row + 0.2, str(step + 1), ha="right", va="center", fontsize=42 / size, color=color)
        style = {"fontsize": 108 / size, "color": color, "weight": "bold" if step < 0 else "normal"}
        axes.text(column + 0.5, row + 0.53, digit, ha="center", va="center", **style)
    for line in range(size + 1):
        axes.plot([0, size], [line, line], color=INK, linewidth=2 if line % height == 0 else 0.5)
        axes.plot([line, line], [0, size], color=INK, linewidth=2 if line % width == 0 else 0.5)


def animate(shown: dict[str, Any], path: Path) -> None:
    """Write an animated GIF of the steps in which a Sudoku was solved."""
    figure = Figure(figsize=(3.2, 3.2), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    save_animation(figure, lambda step: draw_board(axes, shown, step), range(-1, max(shown["steps"]) + 1), 0.35, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(PuzzleArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs on a corpus of puzzles.")
    options, others = parser.parse(argv)
    for name in options.decodings:
        check_choice("decodings", name, DECODINGS)
    runs = [read_run(folder, CORPORA) for folder in others.runs]
    command, included = command_line(__file__, argv), []
    if options.include:
        earlier_command, included = read_included(options)
        command = f"{earlier_command} && {command}"
    puzzles, *different = {
        re.sub("_(clues|puzzles|moves)$", "", run["arguments"]["corpus"][0]) for run in [*included, *runs]
    }
    if different:
        raise ValueError(
            f"All runs must be trained on the same puzzles, but the corpora are {puzzles}, {', '.join(different)}. Run "
            "the command once for each corpus."
        )
    recipes = group_by_recipe([*included, *runs])
    check_decodings(included, runs, options.decodings)
    check_is_no_run(options.output_dir)
    with make_folder(options.output_dir):  # first, so that a wrong folder is an error before the long measurements
        for run in runs:
            run |= solve(run, options)
    task = "sudoku" if puzzles.startswith(sudoku.__name__) else "path-star"
    texts = make_puzzles(puzzles, options.num_puzzles, options.num_clues)
    results = {
        "command": command,
        "task": task,
        "puzzles": puzzles,
        "num_puzzles": options.num_puzzles,
        "num_clues": options.num_clues,
        "seed": options.seed,
        "mean_missing": fmean(text.count("_") for text, _ in texts),
        "num_threads": torch.get_num_threads(),
        "gpu": name_of_gpu(),
        "summary": {name: summarize(group, options.num_puzzles) for name, group in recipes.items()},
        "runs": recipes,
        "versions": versions(),
    }
    folder, report = options.output_dir, make_report(results)
    shown = next((run["shown"] for run in [*included, *runs] if run["shown"]), None) if task == "sudoku" else None
    plot_results(results, shown, folder / f"{task}.png")
    if shown is not None:
        animate(shown, folder / "sudoku.gif")
        report += SOLUTION
    write_json(folder / "results.json", results)
    write_text(folder / f"{task}.md", report)
    print(report, f"Written: {folder} (results.json, {task}.md, pictures).", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
