# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Number of rows that estimators of the context-order ensemble (Eq. 4) need to reach the same standard error.

    python eval/benchmarks/likelihood_estimators.py RUN --length 64 --output_dir docs/results/likelihood

RUN is the folder of a finished run of training/pretrain.py. docs/likelihood.md describes the estimators. All estimators
score the same sequences of the run's held-out text. The standard error is that of the log-likelihood of one sequence.
Its square is inversely proportional to the number of rows. Therefore, the product rows x squared error compares
estimators independently of the number of draws. The command writes RUN-LENGTH.json. It also writes report.md and
report.png, with the results of all JSON files in the output folder.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from tqdm import tqdm

from common.commands import Options, Parser, one_line_errors, option
from common.data import load_data
from common.files import read_json, write_json, write_text
from common.hardware import versions
from common.models import load_pretrained
from common.reports import BLUE, GREEN, GREY, ORANGE, markdown_table, save_figure, style_axes
from common.results import read_finished_run
from modeling_aogpt import AOGPTForAnyOrderLM, LogLikelihoodOutput
from modeling_aogpt.orders import random_orders
from modeling_aogpt.validation import check_choice, check_even

ROWS_PER_PASS, SEQUENCES_PER_CALL = 4096, 8  # larger passes are not faster on a CPU

# Settings of the run that are written to RUN-LENGTH.json, so that a similar model can be trained.
TRAINING = (
    *("corpus", "packing", "sequence_length", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("target_embedding_size", "position_encoding", "batch_size", "max_steps"),
)
KEYS = ("run", "length", "ensemble_size", "estimators", "comparison")  # required keys of RUN-LENGTH.json
COLORS = {"all ranks": GREY, "random ranks": GREEN, "masked diffusion": ORANGE, "random contexts": BLUE}
BASELINE = "one context order"  # the log-likelihood without an ensemble


@dataclass
class EstimatorArguments(Options):
    """Options of eval/benchmarks/likelihood_estimators.py."""

    length: int | None = option(
        None, "Number of tokens to score at the start of each held-out sequence. Defaults to all tokens."
    )
    ensemble_size: int = option(64, "Number M of orders of each context.", least=2)
    num_sequences: int = option(32, "Number of held-out sequences to score.", least=1)
    num_exact: int | None = option(
        None, 'Number of sequences for the slow estimator "all ranks". Defaults to all sequences.', least=0
    )
    num_exact_orders: int = option(2, 'Number of orders per sequence for the estimator "all ranks".', least=2)
    num_draws: int = option(16, "Number of random draws per sequence for other estimators. Must be even.", least=2)
    estimators: list[str] = option(list(COLORS), f"Estimators to compare: {', '.join(map(repr, COLORS))}.")
    seed: int = option(0, "Seed of the estimators.")
    output_dir: Path | None = option(
        None, "Folder for the results and the report. By default, results are only printed."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("num_draws", self.num_draws)
        for name in self.estimators:
            check_choice("estimators", name, COLORS)
        if self.num_exact is not None and self.num_exact > self.num_sequences:
            raise ValueError(
                f"`num_exact` must be at most `num_sequences` ({self.num_sequences}), but is {self.num_exact}."
            )


def count_rows_of_all_ranks(length: int, ensemble_size: int) -> int:
    """
    Return the number of rows that the estimator "all ranks" takes for one order.

    The order itself takes n rows. In addition, each context of b >= 2 tokens is permuted M - 1 times, and each of these
    permutations takes b + 1 rows.
    """
    return length + (ensemble_size - 1) * sum(rank + 1 for rank in range(2, length))


def count_rows_of_whole_passes(length: int, ensemble_size: int) -> int:
    """Return the number of rows of the authors' evaluation, which takes n (M - 1) + 1 passes of n + 1 rows each."""
    return (length + 1) * (length * (ensemble_size - 1) + 1)


def measure(model: AOGPTForAnyOrderLM, sequences: torch.LongTensor, arguments: EstimatorArguments) -> dict[str, Any]:
    """Return the log-likelihoods, the squared standard errors and the number of rows of each estimator."""
    m, draws = arguments.ensemble_size, arguments.num_draws
    num_exact = len(sequences) if arguments.num_exact is None else arguments.num_exact
    # An order takes n rows, and a draw takes M n rows. The orders therefore take half as many rows as the draws.
    num_orders = draws * m // 2
    estimators: dict[str, tuple[int, Callable[..., LogLikelihoodOutput], dict[str, Any]]] = {
        BASELINE: (len(sequences), model.log_likelihood, {"num_orders": num_orders}),
        "all ranks": (num_exact, model.log_likelihood, {"num_orders": arguments.num_exact_orders}),
        "random ranks": (
            *(len(sequences), model.log_likelihood),
            {"orders": random_orders, "num_orders": draws, "num_ranks": 2},
        ),
        "masked diffusion": (len(sequences), model.diffusion_log_likelihood, {"num_times": draws}),
        "random contexts": (
            *(len(sequences), model.log_likelihood),
            {"orders": "random", "num_orders": num_orders, "num_ranks": draws},
        ),
    }
    results: dict[str, Any] = {}
    for number, (name, (count, estimate, options)) in enumerate(estimators.items()):
        if not count or name not in (BASELINE, *arguments.estimators):
            continue
        options |= {} if name == BASELINE else {"ensemble_size": m}
        generator = torch.Generator().manual_seed(arguments.seed + number)
        batches = sequences[:count].split(SEQUENCES_PER_CALL)
        outputs = [
            estimate(ids, generator=generator, rows_per_pass=ROWS_PER_PASS, **options)
            for ids in tqdm(batches, desc=name)
        ]
        log_likelihoods, errors = (
            torch.cat([output[key] for output in outputs]) for key in ("log_likelihood", "standard_error")
        )
        results[name] = {
            "options": {key: value for key, value in options.items() if not callable(value)},
            "sequences": count,
            "rows_per_sequence": sum(output.num_rows for output in outputs) / count,
            "log_likelihoods": log_likelihoods.tolist(),
            "squared_errors": errors.square().tolist(),
        }
    return results


def compare(results: dict[str, Any], length: int, ensemble_size: int) -> dict[str, Any]:
    """
    Compare each estimator with the estimator "all ranks".

    For each estimator, return rows x squared error, and how many times fewer rows than "all ranks" it needs for the
    same standard error. `times_fewer_rows` uses the measured error of "all ranks".
    `times_fewer_rows_by_variance_of_one_context_order` assumes that the log-likelihood with an ensemble varies between
    orders as much as the log-likelihood without an ensemble. Also return the difference from the result of "all ranks",
    in standard errors. If "all ranks" was not computed, `times_fewer_rows` and the difference are left out.
    """
    single = _cost(results[BASELINE]) / length
    rows_of_all_ranks = count_rows_of_all_ranks(length, ensemble_size)
    exact = results.get("all ranks")
    comparison: dict[str, Any] = {}
    for name in filter(results.__contains__, COLORS):
        cost = _cost(results[name])
        comparison[name] = {
            "rows_times_squared_error": cost,
            "times_fewer_rows_by_variance_of_one_context_order": rows_of_all_ranks * single / cost,
        }
        if exact is not None:
            comparison[name]["times_fewer_rows"] = _cost(exact) / cost
            comparison[name]["difference_in_standard_errors"] = difference(results[name], exact)
    if exact is not None:
        ensemble = fmean(exact["squared_errors"]) * exact["options"]["num_orders"]
        comparison["variance_of_an_order"] = {BASELINE: single, "ensemble": ensemble, "ratio": ensemble / single}
    comparison["rows_of_an_order"] = {
        "all ranks": rows_of_all_ranks,
        "whole passes": count_rows_of_whole_passes(length, ensemble_size),
    }
    return comparison


def _cost(estimate: dict[str, Any]) -> float:
    """Return the number of rows per sequence times the squared standard error."""
    return estimate["rows_per_sequence"] * fmean(estimate["squared_errors"])


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the difference of the results of two estimators, in standard errors, on the sequences that both scored."""
    count = min(one["sequences"], other["sequences"])
    sums = [sum(estimate["log_likelihoods"][:count]) for estimate in (one, other)]
    variance = sum(sum(estimate["squared_errors"][:count]) for estimate in (one, other))
    return (sums[0] - sums[1]) / math.sqrt(variance)


def measure_run(run_dir: Path, arguments: EstimatorArguments) -> dict[str, Any]:
    """Run and compare the estimators on the model and held-out text of a run. Return the content of RUN-LENGTH.json."""
    results, data = read_finished_run(run_dir)
    rows = load_data(data).validation
    length = data.sequence_length if arguments.length is None else arguments.length
    if not 3 <= length <= data.sequence_length:
        raise ValueError(f"`length` must be between 3 and {data.sequence_length} for this run, but is {length}.")
    if len(rows) < arguments.num_sequences:
        raise ValueError(f"`num_sequences` must be at most {len(rows)} for this run, but is {arguments.num_sequences}.")
    indices = torch.linspace(0, len(rows) - 1, arguments.num_sequences).long()
    sequences = torch.tensor(rows["input_ids"][:])[indices, :length]
    model = load_pretrained(AOGPTForAnyOrderLM, run_dir / "model").eval()
    estimates = measure(model, sequences, arguments)
    return {
        "run": {key: results["arguments"][key] for key in TRAINING} | {"num_parameters": results["num_parameters"]},
        "versions": versions(),
        "length": length,
        "ensemble_size": arguments.ensemble_size,
        "seed": arguments.seed,
        "estimators": estimates,
        "comparison": compare(estimates, length, arguments.ensemble_size),
    }


def write_report(folder: Path) -> None:
    """Write report.md and report.png with the results of all JSON files in a folder."""
    files = sorted(folder.glob("*.json"))
    results = [read_json(file, KEYS, "eval/benchmarks/likelihood_estimators.py") for file in files]
    results.sort(key=lambda result: result["length"])
    _plot(results, folder / "report.png")
    write_text(folder / "report.md", _format_report(results))


def _standard_error(result: dict[str, Any], name: str) -> float:
    """Return the standard error of an estimator in nats per token."""
    return math.sqrt(fmean(result["estimators"][name]["squared_errors"])) / result["length"]


def _format_report(results: list[dict[str, Any]]) -> str:
    rows = []
    for result in results:
        for name in filter(result["estimators"].__contains__, COLORS):
            metrics = result["comparison"][name]
            factor, z_score = f"({metrics['times_fewer_rows_by_variance_of_one_context_order']:.3g})", ""
            if "times_fewer_rows" in metrics:
                factor = f"{metrics['times_fewer_rows']:.3g}"
                z_score = f"{metrics['difference_in_standard_errors']:+.1f}"
            cells = (", ".join(result["run"]["corpus"]), str(result["length"]), str(result["ensemble_size"]), name)
            num_rows = f"{result['estimators'][name]['rows_per_sequence']:,.0f}"
            rows.append((*cells, num_rows, f"{_standard_error(result, name):.2g}", factor, z_score))
    header = ("text", "n", "M", "estimator", "rows per sequence", "standard error", "times fewer rows", "difference")
    return f"""{markdown_table(header, rows, "lrrlrrrr")}

* docs/likelihood.md describes the estimators. The standard error is in nats per token.
* n is the number of tokens of a sequence, and M is the number of orders of each context.
* "Times fewer rows" says how many times fewer rows than "all ranks" the estimator needs for the same standard error. It
  is rows x squared error of "all ranks", divided by rows x squared error of the estimator. A value in brackets is an
  extrapolation, because "all ranks" was not computed. It assumes that the log-likelihood with an ensemble varies
  between orders as much as the log-likelihood without an ensemble.
* "Difference" is the difference from the result of "all ranks", in standard errors. Both results are summed over the
  sequences that both estimators scored.
* The authors' evaluation computes a whole pass for each context. It takes about twice as many rows as "all ranks".
"""


def _plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot the standard error against the number of rows, with a panel for each JSON file."""
    figure = Figure(figsize=(4.2 * len(results) + 0.6, 4.2), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        names = [name for name in result["estimators"] if name in COLORS]
        num_rows = {name: result["estimators"][name]["rows_per_sequence"] for name in names}
        ends = [min(num_rows.values()) / 3, max(num_rows.values()) * 3]
        for name, rows in num_rows.items():
            error, color = _standard_error(result, name), COLORS[name]
            axes.plot(ends, [error * math.sqrt(rows / end) for end in ends], color=color, linewidth=1.2, label=name)
            axes.plot([rows], [error], "o", color=color, markersize=5)
        axes.set(xscale="log", yscale="log", xlabel="rows per sequence")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        corpus = ", ".join(result["run"]["corpus"])
        style_axes(axes, f"{corpus}, n = {result['length']}, M = {result['ensemble_size']}")
    figure.axes[0].set_ylabel("standard error, nats per token")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(EstimatorArguments)
    parser.add_argument("run", type=Path, metavar="RUN", help="Folder of a finished run.")
    arguments, others = parser.parse(argv)
    results = measure_run(others.run, arguments)
    print(json.dumps(results["comparison"], indent=1))
    if arguments.output_dir is not None:
        write_json(arguments.output_dir / f"{others.run.resolve().name}-{results['length']}.json", results)
        write_report(arguments.output_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
