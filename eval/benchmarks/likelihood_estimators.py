# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Number of rows that estimators of the context-order ensemble (Eq. 4) need to reach the same standard error.

    python eval/benchmarks/likelihood_estimators.py RUN --length 64 --output_dir docs/results/likelihood

RUN is the folder of a finished run of training/pretrain.py. docs/likelihood.md describes the estimators. All estimators
score the same sequences of the run's held-out text. The standard error is that of the log-likelihood of one sequence.
Its square is inversely proportional to the number of rows. Therefore, the product rows x squared error compares
estimators independently of the number of draws. The command writes PARENT-RUN-LENGTH-M.json, where PARENT is the
folder of RUN, and M is the size of the ensemble. It also writes report.md, with the results of all JSON files in the
output folder.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.data import load_data_of_run
from common.files import make_folder, read_json, write_json, write_text
from common.hardware import default_device, versions
from common.models import load_pretrained
from common.reports import markdown_table, with_error
from common.results import read_finished_run
from eval.estimates import ratio_with_error
from modeling_aogpt import AOGPTForAnyOrderLM, LogLikelihoodOutput
from modeling_aogpt.orders import random_orders
from modeling_aogpt.validation import check_even

ROWS_PER_PASS, SEQUENCES_PER_CALL = 4096, 8  # larger passes are not faster on a CPU

# Settings of the run that are written to PARENT-RUN-LENGTH-M.json, so that a similar model can be trained.
TRAINING = (
    *("corpus", "packing", "sequence_length", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("target_embedding_size", "position_encoding", "batch_size", "max_steps"),
)
KEYS = ("run", "length", "ensemble_size", "estimators")  # required keys of a JSON file of this command


@dataclass
class EstimatorArguments(Options):
    """Options of eval/benchmarks/likelihood_estimators.py."""

    length: int | None = option(
        None, "Number of tokens to score at the start of each held-out sequence. Defaults to all tokens."
    )
    ensemble_size: int = option(64, "Number M of orders of each context.", least=2)
    num_sequences: int = option(32, "Number of held-out sequences to score.", least=1)
    num_exact_orders: int = option(2, 'Number of orders per sequence for the estimator "all ranks".', least=2)
    num_draws: int = option(16, "Number of random draws per sequence for other estimators. Must be even.", least=2)
    seed: int = option(0, "Seed of the estimators.")
    output_dir: Path = option(Path("runs/likelihood_estimators"), "Folder for the results and the report.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("num_draws", self.num_draws)


def measure(model: AOGPTForAnyOrderLM, sequences: torch.LongTensor, arguments: EstimatorArguments) -> dict[str, Any]:
    """Return the log-likelihoods, the squared standard errors and the number of rows of each estimator."""
    m, draws = arguments.ensemble_size, arguments.num_draws
    # An order takes n rows, and a draw takes M n rows. The orders therefore take half as many rows as the draws.
    num_orders = draws * m // 2
    estimators: dict[str, tuple[Callable[..., LogLikelihoodOutput], dict[str, Any]]] = {
        "all ranks": (model.log_likelihood, {"num_orders": arguments.num_exact_orders}),
        "random ranks": (model.log_likelihood, {"orders": random_orders, "num_orders": draws, "num_ranks": 2}),
        "masked diffusion": (model.diffusion_log_likelihood, {"num_times": draws}),
        "random contexts": (model.log_likelihood, {"orders": "random", "num_orders": num_orders, "num_ranks": draws}),
    }
    results: dict[str, Any] = {}
    for number, (name, (estimate, options)) in enumerate(estimators.items()):
        options["ensemble_size"] = m
        generator = torch.Generator().manual_seed(arguments.seed + number)
        outputs = [
            estimate(ids, generator=generator, rows_per_pass=ROWS_PER_PASS, **options)
            for ids in progress_bar(sequences.split(SEQUENCES_PER_CALL), desc=name)
        ]
        log_likelihoods, errors = (
            torch.cat([output[key] for output in outputs]) for key in ("log_likelihood", "standard_error")
        )
        results[name] = {
            "options": {key: value for key, value in options.items() if not callable(value)},
            "rows_per_sequence": sum(output.num_rows for output in outputs) / len(sequences),
            "log_likelihoods": log_likelihoods.tolist(),
            "squared_errors": errors.square().tolist(),
        }
    return results


def compare(results: dict[str, Any]) -> dict[str, Any]:
    """
    Compare each estimator with the estimator "all ranks".

    For each estimator, return the factor by which it needs fewer rows than "all ranks" for the same standard error, the
    standard error of this factor, and the difference between the two results in standard errors.
    """
    exact = results["all ranks"]
    comparison = {}
    for name, result in results.items():
        rows = exact["rows_per_sequence"] / result["rows_per_sequence"]
        ratio, error = ratio_with_error(*(np.array(values["squared_errors"]) for values in (exact, result)))
        comparison[name] = {
            "times_fewer_rows": rows * ratio,
            "times_fewer_rows_standard_error": error and rows * error,
            "difference_in_standard_errors": difference(result, exact),
        }
    return comparison


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the difference between the total log-likelihoods of two estimators, divided by its standard error."""
    sums = [sum(estimate["log_likelihoods"]) for estimate in (one, other)]
    variance = sum(sum(estimate["squared_errors"]) for estimate in (one, other))
    return (sums[0] - sums[1]) / math.sqrt(variance)


def measure_run(run_dir: Path, arguments: EstimatorArguments) -> dict[str, Any]:
    """Compare the estimators on the model and held-out text of a run. Return the content of the JSON file."""
    results, rows = read_finished_run(run_dir), load_data_of_run(run_dir).validation
    longest = results["arguments"]["sequence_length"]
    length = longest if arguments.length is None else arguments.length
    if not 3 <= length <= longest:
        raise ValueError(f"`length` must be between 3 and {longest} for this run, but is {length}.")
    if len(rows) < arguments.num_sequences:
        raise ValueError(f"`num_sequences` must be at most {len(rows)} for this run, but is {arguments.num_sequences}.")
    indices = torch.linspace(0, len(rows) - 1, arguments.num_sequences).long()
    model = load_pretrained(AOGPTForAnyOrderLM, run_dir / "model").to(default_device()).eval()
    sequences = torch.tensor(rows["input_ids"][:])[indices, :length].to(model.device)
    return {
        "run": {key: results["arguments"][key] for key in TRAINING} | {"num_parameters": results["num_parameters"]},
        "versions": versions(),
        "length": length,
        "ensemble_size": arguments.ensemble_size,
        "seed": arguments.seed,
        "estimators": measure(model, sequences, arguments),
    }


def format_report(folder: Path) -> str:
    """Return the text of report.md, with the results of all JSON files in a folder."""
    results = [read_json(file, KEYS, "eval/benchmarks/likelihood_estimators.py") for file in folder.glob("*.json")]
    rows = []
    for result in sorted(results, key=lambda result: result["length"]):
        comparisons = compare(result["estimators"])
        for name, estimate in result["estimators"].items():
            comparison, squared_errors, options = comparisons[name], estimate["squared_errors"], estimate["options"]
            error = math.sqrt(fmean(squared_errors)) / result["length"]
            cells = (", ".join(result["run"]["corpus"]), str(result["length"]), str(result["ensemble_size"]), name)
            draws = options.get("num_ranks", options.get("num_times", ""))
            counts = (str(len(squared_errors)), str(options.get("num_orders", "")), str(draws))
            ratio = comparison["times_fewer_rows"]
            digits = max(1 - math.floor(math.log10(ratio)), 0)  # at least two significant digits
            fewer = with_error(ratio, comparison["times_fewer_rows_standard_error"], digits)
            numbers = (f"{estimate['rows_per_sequence']:,.0f}", f"{error:.2g}", fewer)
            rows.append((*cells, *counts, *numbers, f"{comparison['difference_in_standard_errors']:+.1f}"))
    header = (
        *("text", "n", "M", "estimator", "sequences", "orders", "draws", "rows per sequence", "standard error"),
        *("times fewer rows", "difference"),
    )
    return f"""{markdown_table(header, rows, "lrrlrrrrrrr")}

* docs/likelihood.md describes the estimators. The standard error is in nats per token.
* n is the number of tokens of a sequence, and M is the number of orders of each context. "Orders" and "draws" are the
  numbers of orders and of random draws for each sequence (for "random ranks", draws for each order).
* "Times fewer rows" says how many times fewer rows than "all ranks" the estimator needs for the same standard error. It
  is rows x squared error of "all ranks", divided by rows x squared error of the estimator. After ± is the standard
  error of this number over the sequences. It is a rough estimate, because there are few sequences.
* "Difference" is the difference from the result of "all ranks", in standard errors.
* The authors' evaluation computes a whole pass for each context. It takes about twice as many rows as "all ranks".
"""


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(EstimatorArguments)
    parser.add_argument("run", type=Path, metavar="RUN", help="Folder of a finished run.")
    arguments, others = parser.parse(argv)
    command = command_line(__file__, argv)
    folder = arguments.output_dir
    with make_folder(folder):  # first, so that a wrong folder is an error before the long measurements
        results = {"command": command} | measure_run(others.run, arguments)
    name = "-".join(others.run.resolve().parts[-2:])  # the runs of a study have the same name with each seed
    write_json(folder / f"{name}-{results['length']}-{arguments.ensemble_size}.json", results)
    write_text(folder / "report.md", format_report(folder))
    print(format_report(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
