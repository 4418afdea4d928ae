# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Comparison of any-order training that starts from a left-to-right model with one that starts from random weights.

    python eval/benchmarks/from_causal.py [--config FILE] [--seeds 0 1 2] [--runs_dir DIR] [--output_dir DIR]

For each seed, the command trains a small model left to right (first phase). The model has the same blocks as a Llama.
The command exports the model as a `LlamaForCausalLM` of Transformers, and converts this into an any-order model. It
trains the any-order model in random orders, with 10 % of the sequences left to right (second phase). Each phase takes
`max_steps` steps, as set in the YAML file. For comparison, the command trains models in random orders from random
weights, and continues the first model left to right. All final models have the same number of training tokens. Finished
runs are not repeated, and interrupted runs are resumed. The command writes results.json, report.md and curves.png.
"""

import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from common.commands import Options, Parser, one_line_errors, option
from common.files import make_folder, write_json, write_text
from common.reports import BLUE, GREEN, GREY, ORANGE, markdown_table, save_figure, style_axes, with_error
from common.results import ORDER_NAMES, read_finished_run
from eval.benchmarks.study_results import infilling_score
from training.convert_causal_lm import convert
from training.export_causal_lm import export

ROOT = Path(__file__).parents[2]
# Kinds of bits per byte: key in results.json, and name in the report.
MEASURES = {**ORDER_NAMES, "infilling": "a random half, given the other"}
ANY_ORDER = ("--orders=random", "--left_to_right_fraction=0.1")
LEFT_TO_RIGHT = ("--orders=left_to_right",)
FIRST_PHASE = "left-to-right"


@dataclass(frozen=True)
class Run:
    """
    A training run: either a second phase, or a run from random weights that is as long as both phases together.

    Attributes:
        title: Name in the report and in the figure.
        options: Options of training/pretrain.py.
        color: Color in the figure.
        is_continued: Whether the run starts from the converted model of the first phase.
    """

    title: str
    options: tuple[str, ...]
    color: str
    is_continued: bool


RUNS = {
    "converted": Run("left to right, converted, then any order", ANY_ORDER, ORANGE, True),
    "from-scratch": Run("any order from random weights", ANY_ORDER, BLUE, False),
    "from-scratch-adaln": Run(
        "any order from random weights, with adaLN", (*ANY_ORDER, "--target_injection=adaln"), GREEN, False
    ),
    "only-left-to-right": Run("left to right only", LEFT_TO_RIGHT, GREY, True),
}


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/from_causal.py."""

    config: Path = option(
        ROOT / "training" / "configs" / "from_causal_stdlib.yaml", "YAML file of training/pretrain.py for all runs."
    )
    seeds: list[int] = option([0, 1, 2], "Seeds of the runs.", least=0)
    runs_dir: Path = option(Path("runs/from-causal"), "Folder for the runs and models.")
    output_dir: Path = option(Path("docs/results/from_causal"), "Folder for results.json, report.md and curves.png.")


def train(argv: list[str]) -> None:
    """Run training/pretrain.py in a new process. If it fails or is stopped, exit with its exit status."""
    status = subprocess.run([sys.executable, str(ROOT / "training" / "pretrain.py"), *argv]).returncode
    if status:
        sys.exit(status)


def train_all(arguments: Arguments, seed: int) -> Path:
    """Train and convert all models of a seed, and return their folder."""
    folder = arguments.runs_dir / f"seed-{seed}"

    def train_run(name: str, *options: str) -> None:
        train([str(arguments.config), f"--output_dir={folder / name}", *options])

    train_run(FIRST_PHASE, f"--seed={seed}", *LEFT_TO_RIGHT)
    steps = read_finished_run(folder / FIRST_PHASE)[0]["steps"]
    stock, converted = folder / "llama", folder / "any-order"
    if not stock.exists():
        export(str(folder / FIRST_PHASE / "model"), stock)
    if not converted.exists():
        convert(str(stock), converted)
    for name, run in RUNS.items():
        if run.is_continued:  # needs another seed; the same seed would repeat the data of the first phase
            train_run(name, f"--seed={1000 + seed}", f"--init_from={converted}", *run.options)
        else:
            train_run(name, f"--seed={seed}", f"--max_steps={2 * steps}", *run.options)
    if not (folder / "exported").exists():
        export(str(folder / "converted" / "model"), folder / "exported")  # raises an error if the predictions change
    return folder


def summarize_run(folder: Path) -> dict[str, Any]:
    """Return the number of parameters, the training tokens and time, and the bits per byte of a run."""
    results, _ = read_finished_run(folder)
    keys = ("num_parameters", "tokens", "train_seconds", "evaluations")
    final = {measure: results["evaluations"][-1][measure] for measure in ORDER_NAMES}
    return {key: results[key] for key in keys} | {"final": final | {"infilling": infilling_score(folder)}}


def collect_results(folders: dict[int, Path], command: str) -> dict[str, Any]:
    """Return the content of results.json: the results of all runs, and means and standard errors over the seeds."""
    first, _ = read_finished_run(folders[min(folders)] / FIRST_PHASE)
    seeds = {
        seed: {name: summarize_run(folder / name) for name in (FIRST_PHASE, *RUNS)} for seed, folder in folders.items()
    }
    last = first["evaluations"][-1]
    return {
        "command": command,
        "held_out": {"sequences": last["sequences"], "bytes": last["bytes"]},
        "mean_and_standard_error": {
            name: {
                measure: mean_and_error([runs[name]["final"][measure] for runs in seeds.values()])
                for measure in MEASURES
            }
            for name in (FIRST_PHASE, *RUNS)
        },
        "arguments": first["arguments"],
        "corpus": first["corpus"],
        "seeds": seeds,
        "hardware": first["hardware"],
        "versions": first["versions"],
    }


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """Return the mean of values, and its standard error (None for a single value)."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return statistics.fmean(values), error


def format_report(results: dict[str, Any]) -> str:
    """Return the text of report.md."""
    runs = next(iter(results["seeds"].values()))
    titles = {FIRST_PHASE: "left to right, first phase"} | {name: run.title for name, run in RUNS.items()}
    rows = [
        (
            titles[name],
            f"{runs[name]['num_parameters'] / 1e6:.2f} M",
            f"{_curve(runs, name, 'any_order')[0][-1]:.2f} M",
            *(with_error(*scores[measure], 3) for measure in MEASURES),
        )
        for name, scores in results["mean_and_standard_error"].items()
    ]
    held_out, length = results["held_out"], results["arguments"]["sequence_length"]
    return f"""# Any order from a left-to-right model

![Held-out bits per byte during training](curves.png)

The table shows bits per byte on {held_out["bytes"]:,} held-out bytes ({held_out["sequences"]} sequences of {length}
tokens), computed with the moving averages of the weights. The values are means and standard errors over
{len(results["seeds"])} seeds. Lower is better.

{markdown_table(["training", "parameters", "tokens", *MEASURES.values()], rows, "lrrrrr")}

Written by `{results["command"]}`.

* The first phase trains a Llama left to right. The Llama is exported as a `LlamaForCausalLM` of Transformers, and
  converted into an any-order model. In the second phase, this model is trained on the same number of tokens again, in
  random orders with 10 % of the sequences left to right. Except for the model of the first phase, all models are
  trained on the same total number of tokens. *With adaLN*, the target position also modulates every block, as in the
  paper.
* All runs have the same recipe, which was not tuned for any of them. In the second phase, the learning rate starts
  again with a warm-up. The second phase draws its sequences with another seed, so some sequences are used in both
  phases. Runs from random weights use no sequence twice.
* *A random half, given the other*: the tokens of a sequence are divided into two random halves, and each half is
  predicted given the other.
"""


def plot_curves(results: dict[str, Any], path: Path) -> None:
    """Plot held-out bits per byte against the number of training tokens, for each seed and as a mean over seeds."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    for axes, (measure, title) in zip(figure.subplots(1, 2), ORDER_NAMES.items(), strict=True):
        for name, run in RUNS.items():
            curves = [_curve(runs, name, measure) for runs in results["seeds"].values()]
            for tokens, values in curves:
                axes.plot(tokens, values, color=run.color, linewidth=0.7, alpha=0.4)
            means = [statistics.fmean(values) for values in zip(*(values for _, values in curves), strict=True)]
            axes.plot(curves[0][0], means, color=run.color, marker="o", markersize=3.5, label=run.title)
        end_of_first_phase = curves[0][0][-1] / 2
        axes.axvline(end_of_first_phase, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlabel="million training tokens", ylabel="bits per byte")
        style_axes(axes, f"Held-out text, {title}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, path)


def _curve(runs: dict[str, Any], name: str, measure: str) -> tuple[list[float], list[float]]:
    """
    Return the training tokens (in millions) and the bits per byte at each evaluation of a run.

    If the run continues the first phase, the evaluations of the first phase are included.
    """
    points, offset = [], 0
    is_continued = name in RUNS and RUNS[name].is_continued
    for part in (FIRST_PHASE, name) if is_continued else (name,):
        evaluations, tokens = runs[part]["evaluations"], runs[part]["tokens"]
        per_step = tokens / evaluations[-1]["step"]
        points += [((offset + scores["step"] * per_step) / 1e6, scores[measure]) for scores in evaluations]
        offset += tokens
    return tuple(map(list, zip(*points, strict=True)))


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(Arguments).parse(argv)
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the long runs
        folders = {seed: train_all(arguments, seed) for seed in arguments.seeds}
    results = collect_results(folders, shlex.join(["python", "eval/benchmarks/from_causal.py", *argv]))
    plot_curves(results, arguments.output_dir / "curves.png")
    write_text(arguments.output_dir / "report.md", format_report(results))
    write_json(arguments.output_dir / "results.json", results)
    print(format_report(results))


if __name__ == "__main__":
    main(sys.argv[1:])
