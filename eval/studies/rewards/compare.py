# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Fraction of held-out problems that models solve before and after training with rewards, and the curves of training.

    python eval/studies/rewards/compare.py RUNS_DIR --output_dir DIR

RUNS_DIR is the folder of the finished runs. Their folders are named ARM-SEED. The arm `start` contains the models that
the other arms continue. The command measures each run once, and keeps the results as puzzles.json in the folder of the
run. Folders with gradients.json (see likelihoods.py) are summarized in a second table. The command writes rewards.json,
gradients.json, the report (see report.py) and curves.png to DIR.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option
from common.files import make_folder, read_json, write_json
from common.hardware import versions
from common.reports import save_figure, style_axes
from common.results import read_finished_run
from eval.studies.countdown import countdown
from eval.studies.runner.estimates import estimate
from eval.studies.runner.recipes import encode_problems
from eval.studies.runner.report import write_report
from eval.studies.sudoku.puzzles import DECODINGS, decode, make_puzzles
from modeling_aogpt.infill import encode_with_masks
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.tokenization import load_tokenizer
from training.grpo import MEASURES

# Decodings whose solved problems are counted.
SUDOKU = ("confidence", "threshold 0.9")
COUNTDOWN = ("random, sampled", "left to right, sampled", "random", "left to right", "confidence", "threshold 0.9")
ARGUMENTS = ("learning_rate", "max_steps", "num_updates", "batch_size", "num_candidates", "tau", "seed")
WINDOW = 6  # steps whose mean is a point of a curve
MEASURED = "puzzles.json"  # in the folder of a run


@dataclass
class CompareArguments(Options):
    """Options of eval/studies/rewards/compare.py."""

    num_puzzles: int = option(500, "Number of held-out minimal puzzles of 6 x 6 cells, or of Countdown.", least=1)
    output_dir: Path = option(Path("runs/rewards/results"), "Folder for rewards.json and the report.")


def measure(run: Path, num_puzzles: int) -> dict[str, Any]:
    """Return the cost of a run, its curves, and the fraction of puzzles that its model solves by each decoding.

    Without a model, only the curves are returned.
    """
    results, folder, path = read_finished_run(run), run / "model", run / MEASURED
    if path.exists():
        known = read_json(path, ("num_puzzles",), "eval/studies/rewards/compare.py")
        if known["num_puzzles"] == num_puzzles:
            return known
    arguments = {name: results["arguments"].get(name) for name in ARGUMENTS}
    measured = {"num_puzzles": num_puzzles, "arguments": arguments, "evaluations": results["evaluations"]}
    measured["seconds"] = results["train_seconds"]
    if (log := run / "log.jsonl").exists():
        steps = [json.loads(line) for line in log.read_text().splitlines()]
        measured["curves"] = {name: [step[name] for step in steps] for name in MEASURES}
    if folder.exists():
        model, tokenizer = load_model(folder, dtype=torch.float32), load_tokenizer(folder)
        is_countdown = results["arguments"]["corpus"][0].startswith(countdown.__name__)
        solve = solve_countdown if is_countdown else solve_sudoku
        for name in COUNTDOWN if is_countdown else SUDOKU:
            measured[name] = solve(model, tokenizer, name, num_puzzles)
            print(f"{run} {name}: {measured[name]['solved']:.4f}", flush=True)
    write_json(path, measured)
    return measured


def solve_sudoku(model: Model, tokenizer: PreTrainedTokenizerBase, name: str, num_puzzles: int) -> dict[str, float]:
    """Return the results of a decoding for held-out minimal puzzles."""
    texts = make_puzzles("eval.studies.sudoku.corpus:sudoku_6_clues", num_puzzles, None)
    inputs, solutions = encode_problems(texts, tokenizer, 37)
    return decode(model, inputs, solutions, name, seed=0)[0]


def solve_countdown(model: Model, tokenizer: PreTrainedTokenizerBase, name: str, num_problems: int) -> dict[str, float]:
    """Return the fraction of held-out problems of Countdown that a decoding solves."""
    prompts = countdown.held_out_prompts(num_problems)
    inputs = torch.tensor([encode_with_masks(prompt, tokenizer) for prompt in prompts])
    options = {"do_sample": False} | DECODINGS[name] | {"generator": torch.Generator().manual_seed(0)}
    completions = tokenizer.batch_decode(model.generate(inputs, **options), skip_special_tokens=True)
    return {"solved": fmean(countdown.solved(prompts, completions))}


def make_table(arms: dict[str, dict[int, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return a row for each arm, with means over the seeds. Differences are those of a seed by the first decoding."""
    table = {}
    arms = {arm: {seed: run for seed, run in runs.items() if decodings_of(run)} for arm, runs in arms.items()}
    for arm, runs in arms.items():
        names = decodings_of(next(iter(runs.values())))
        row: dict[str, Any] = {name: estimate([run[name]["solved"] for run in runs.values()]) for name in names}
        for other in ("start", "exact"):
            pairs = [(run, arms[other][seed]) for seed, run in runs.items() if seed in arms.get(other, {})]
            if arm not in ("start", other) and pairs:
                gains = [run[names[0]]["solved"] - before[names[0]]["solved"] for run, before in pairs]
                row[f"{names[0]}, minus {other}"] = estimate(gains)
        if names == SUDOKU:
            row["passes, threshold 0.9"] = fmean(run["threshold 0.9"]["passes_per_puzzle"] for run in runs.values())
        row["seconds"] = round(fmean(run["seconds"] for run in runs.values()))
        table[arm] = row
    return table


def decodings_of(run: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the decodings that were measured for a run."""
    kinds = (COUNTDOWN, SUDOKU)  # those of Countdown include those of Sudoku
    return next((names for names in kinds if set(names) <= run.keys()), ())


def summarize_gradients(files: list[Path], command: str) -> dict[str, Any]:
    """Return the results of gradients.json files, one per seed, with a row for each likelihood."""
    seeds = [json.loads(file.read_text()) for file in files]
    table = {
        name: {key: estimate([seed["gradients"][name][key] for seed in seeds]) for key in values}
        for name, values in seeds[0]["gradients"].items()
    }
    plotted = [key for key in table["exact"] if key != "norm"]
    return {"title": "Gradients", "table": table, "plotted": plotted, "command": command, "seeds": seeds}


def plot(arms: dict[str, dict[int, dict[str, Any]]], path: Path) -> None:
    """Plot the curves of each arm as means over its seeds and over `WINDOW` steps."""
    figure, names = Figure(figsize=(12, 3), layout="constrained"), [name for name in MEASURES if name != "solved"]
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        for arm, runs in arms.items():
            if curves := [run["curves"][name] for run in runs.values() if "curves" in run]:
                means = [fmean(values) for values in zip(*curves, strict=False)]
                starts = range(0, len(means), WINDOW)
                points = [fmean(means[first : first + WINDOW]) for first in starts]
                axes.plot([first + WINDOW / 2 for first in starts], points, label=arm)
        style_axes(axes, name)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(CompareArguments)
    parser.add_argument("runs", type=Path, help="Folder of the finished runs ARM-SEED.")
    options, others = parser.parse(argv)
    arms: dict[str, dict[int, dict[str, Any]]] = {}
    folders = sorted(path.parent for path in others.runs.glob("*-*/results.json"))
    if not folders:
        raise ValueError(f"{others.runs} has no finished runs ARM-SEED. Pass the folder that contains them.")
    with make_folder(options.output_dir):
        for folder in sorted(folders, key=lambda path: (not path.name.startswith("start"), path.name)):
            arm, _, seed = folder.name.rpartition("-")
            arms.setdefault(arm, {})[int(seed)] = measure(folder, options.num_puzzles)
    plot(arms, options.output_dir / "curves.png")
    results = {
        "title": "Solved held-out problems",
        "table": make_table(arms),
        "plotted": list(decodings_of(next(iter(arms["start"].values())))),
        "command": command_line(__file__, argv),
        "num_puzzles": options.num_puzzles,
        "runs": arms,
        "num_threads": torch.get_num_threads(),
        "versions": versions(),
    }
    write_json(options.output_dir / "rewards.json", results)
    if files := sorted(others.runs.glob("*/gradients.json")):
        write_json(options.output_dir / "gradients.json", summarize_gradients(files, results["command"]))
    write_report(options.output_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
