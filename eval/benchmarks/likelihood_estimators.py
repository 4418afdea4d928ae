# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
How many rows do estimators of the context-order ensemble (Eq. 4) need for one standard error?

    python eval/benchmarks/likelihood_estimators.py RUN --length 64 --output_dir docs/results/likelihood

RUN is a finished run of training/pretrain.py, whose held-out text is scored. What counts is the error in the likelihood
of a given sequence; sequences differ much more, but every estimator sees the same ones. Rows are counted as they are
computed. The squared error goes down as draws and so rows go up, so rows x squared error compares estimators whatever
their number of draws. Writes RUN-LENGTH.json to the folder, and report.md and report.png on all such files in it.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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

# Larger passes are no faster on a CPU.
ROWS_PER_PASS, SEQUENCES_PER_CALL = 4096, 8

# Settings of a run that are recorded, enough to train such a model.
TRAINING = (
    *("corpus", "packing", "sequence_length", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("target_embedding_size", "position_encoding", "batch_size", "max_steps"),
)
KEYS = ("run", "length", "ensemble_size", "estimators", "comparison")  # of a file of results
LABELS = {
    "all ranks": ("all ranks (prefix rows)", GREY),
    "random ranks": ("random ranks, gain over the order's own likelihood", GREEN),
    "masked diffusion": ("masked diffusion", ORANGE),
    "masked diffusion, gain": ("masked diffusion, gain over the chains' likelihood", BLUE),
}


@dataclass
class EstimatorArguments(Options):
    """What to measure."""

    length: int | None = option(None, "Tokens of a sequence, the first of held-out ones; unless given, as trained.")
    ensemble_size: int = option(64, "Context orders M of the ensemble.", least=2)
    num_sequences: int = option(32, "Held-out sequences.", least=1)
    num_exact: int | None = option(
        None, "Sequences for which all ranks are computed; unless given, all of them. 0: none, too many rows.", least=0
    )
    num_exact_orders: int = option(2, "Orders for which they are, at least 2.", least=2)
    num_draws: int = option(16, "Draws of ranks, even.", least=2)
    estimators: list[str] = option(list(LABELS), f"Which of {', '.join(map(repr, LABELS))}.")
    seed: int = option(0, "Of all that is random.")
    output_dir: Path | None = option(None, "Folder for the figures and the report.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_draws % 2:
            raise ValueError(f"num_draws is {self.num_draws}; it must be even.")
        if self.num_exact is not None and self.num_exact > self.num_sequences:
            raise ValueError(f"num_exact is {self.num_exact}, but there are num_sequences={self.num_sequences}.")


def rows_of_all_ranks(length: int, ensemble_size: int) -> int:
    """Return the rows for one order: its own, and M - 1 permutations of each context of two tokens or more."""
    return length + (ensemble_size - 1) * sum(rank + 1 for rank in range(2, length))


def rows_of_whole_passes(length: int, ensemble_size: int) -> int:
    """Return the rows of the authors' evaluation: n (M - 1) passes, and the order's own, of n + 1 rows each."""
    return (length + 1) * (length * (ensemble_size - 1) + 1)


def measure(model: AOGPTForAnyOrderLM, sequences: torch.LongTensor, arguments: EstimatorArguments) -> dict[str, Any]:
    """Return the rows and squared errors per sequence, in nats, of every estimator."""
    m, draws = arguments.ensemble_size, arguments.num_draws
    num_exact = len(sequences) if arguments.num_exact is None else arguments.num_exact
    chains = draws * m // 2  # half as many rows as the draws that they are added to
    estimators: dict[str, tuple[int, Callable[..., LogLikelihoodOutput], dict[str, Any]]] = {
        "one context order": (len(sequences), model.log_likelihood, {"num_orders": chains}),
        "all ranks": (num_exact, model.log_likelihood, {"num_orders": arguments.num_exact_orders}),
        "random ranks": (
            *(len(sequences), model.log_likelihood),
            {"orders": random_orders, "num_orders": draws, "num_ranks": 2},
        ),
        "masked diffusion": (len(sequences), model.diffusion_log_likelihood, {"num_times": draws}),
        "masked diffusion, gain": (
            *(len(sequences), model.log_likelihood),
            {"orders": "random", "num_orders": chains, "num_ranks": draws},
        ),
    }
    found: dict[str, Any] = {}
    for number, (name, (count, estimate, options)) in enumerate(estimators.items()):
        if not count or name not in ("one context order", *arguments.estimators):
            continue
        options |= {} if name == "one context order" else {"ensemble_size": m}
        generator = torch.Generator().manual_seed(arguments.seed + number)
        batches = sequences[:count].split(SEQUENCES_PER_CALL)
        outputs = [
            estimate(ids, generator=generator, rows_per_pass=ROWS_PER_PASS, **options)
            for ids in tqdm(batches, desc=name)
        ]
        log_likelihoods, errors = (
            torch.cat([output[key] for output in outputs]) for key in ("log_likelihood", "standard_error")
        )
        found[name] = {
            "options": {key: value for key, value in options.items() if not callable(value)},
            "sequences": count,
            "rows_per_sequence": sum(output.num_rows for output in outputs) / count,
            "log_likelihoods": log_likelihoods.tolist(),
            "squared_errors": errors.square().tolist(),
        }
    return found


def compare(found: dict[str, Any], length: int, ensemble_size: int) -> dict[str, Any]:
    """
    Return rows x squared error of each estimator beside that of all ranks, and their differences in standard errors.

    If all ranks are too many rows, the variance of orders without an ensemble stands in for that with one.
    """
    chain = product(found["one context order"])
    table: dict[str, Any] = {}
    for name in LABELS:
        if name not in found:
            continue
        table[name] = {"rows_times_squared_error": product(found[name])}
        as_orders_vary = rows_of_all_ranks(length, ensemble_size) * chain / length
        table[name]["times_fewer_rows_by_variance_of_one_context_order"] = (
            as_orders_vary / table[name]["rows_times_squared_error"]
        )
        if "all ranks" in found:
            table[name]["times_fewer_rows"] = product(found["all ranks"]) / product(found[name])
            table[name]["difference_in_standard_errors"] = difference(found[name], found["all ranks"])
    if "all ranks" in found:
        ensemble = mean(found["all ranks"]["squared_errors"]) * found["all ranks"]["options"]["num_orders"]
        single = chain / length
        table["variance_of_an_order"] = {"one context order": single, "ensemble": ensemble, "ratio": ensemble / single}
    table["rows_of_an_order"] = {
        "all ranks": rows_of_all_ranks(length, ensemble_size),
        "whole passes": rows_of_whole_passes(length, ensemble_size),
    }
    return table


def product(figures: dict[str, Any]) -> float:
    return figures["rows_per_sequence"] * mean(figures["squared_errors"])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def difference(figures: dict[str, Any], others: dict[str, Any]) -> float:
    """Return the difference of the sums over the sequences that both have scored, in standard errors."""
    count = min(figures["sequences"], others["sequences"])
    sums = [sum(values["log_likelihoods"][:count]) for values in (figures, others)]
    variance = sum(sum(values["squared_errors"][:count]) for values in (figures, others))
    return (sums[0] - sums[1]) / math.sqrt(variance)


def measure_run(run_dir: Path, arguments: EstimatorArguments) -> dict[str, Any]:
    """
    Return everything that is measured.

    Raises:
        ValueError: If the run is not finished, or its held-out text has too few or too short sequences.
    """
    if unknown := set(arguments.estimators) - set(LABELS):
        raise ValueError(f"{min(unknown)!r} is no estimator; there are {', '.join(map(repr, LABELS))}.")
    results, data = read_finished_run(run_dir)
    rows = load_data(data).validation
    length = data.sequence_length if arguments.length is None else arguments.length
    if not 3 <= length <= data.sequence_length or len(rows) < arguments.num_sequences:
        raise ValueError(
            f"length={length} and num_sequences={arguments.num_sequences}: this run has {len(rows)} held-out sequences "
            f"of {data.sequence_length} tokens, and contexts have an order from three tokens on."
        )
    chosen = torch.linspace(0, len(rows) - 1, arguments.num_sequences).long()
    sequences = torch.tensor(rows["input_ids"][:])[chosen, :length]
    model = load_pretrained(AOGPTForAnyOrderLM, run_dir / "model").eval()
    found = measure(model, sequences, arguments)
    return {
        "run": {key: results["arguments"][key] for key in TRAINING} | {"num_parameters": results["num_parameters"]},
        "versions": versions(),
        "length": length,
        "ensemble_size": arguments.ensemble_size,
        "seed": arguments.seed,
        "estimators": found,
        "comparison": compare(found, length, arguments.ensemble_size),
    }


def write_report(folder: Path) -> None:
    """Write report.md and report.png on all results in a folder."""
    files = sorted(folder.glob("*.json"))
    measured = [read_json(file, KEYS, "eval/benchmarks/likelihood_estimators.py") for file in files]
    measured.sort(key=lambda one: one["length"])
    plot(measured, folder / "report.png")
    write_text(folder / "report.md", table(measured) + "\n")


def table(measured: list[dict[str, Any]]) -> str:
    """Return a table of rows, standard errors, and the factor of rows saved over all ranks for one standard error."""
    rows = []
    for one in measured:
        for name, (label, _) in LABELS.items():
            if name not in one["estimators"]:
                continue
            values, figures = one["estimators"][name], one["comparison"][name]
            fewer, away = f"({figures['times_fewer_rows_by_variance_of_one_context_order']:.3g})", ""
            if "times_fewer_rows" in figures:
                fewer = f"{figures['times_fewer_rows']:.3g}"
                away = f"{figures['difference_in_standard_errors']:+.1f}"
            error = math.sqrt(mean(values["squared_errors"])) / one["length"]
            cells = (", ".join(one["run"]["corpus"]), str(one["length"]), str(one["ensemble_size"]), label)
            rows.append((*cells, f"{values['rows_per_sequence']:,.0f}", f"{error:.2g}", fewer, away))
    header = ("text", "n", "M", "estimator", "rows per sequence", "± nats per token", "times fewer rows", "off by")
    return f"""{markdown_table(header, rows, "lrrlrrrr")}

±: the standard error. Times fewer rows: rows x squared error of all ranks over that of the estimator; in brackets, if
all ranks were too many rows: their rows counted, and their variance taken to be that of one order without an ensemble.
Off by: the difference from all ranks, summed over the sequences that both scored, in standard errors. The design of
whole passes takes twice the rows of all ranks and some."""


def plot(measured: list[dict[str, Any]], path: Path) -> None:
    """Draw standard error against rows, for each run."""
    figure = Figure(figsize=(4.2 * len(measured) + 0.6, 4.2), layout="constrained")
    for axes, one in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        points = {
            name: (values["rows_per_sequence"], math.sqrt(mean(values["squared_errors"])) / one["length"])
            for name, values in one["estimators"].items()
            if name in LABELS
        }
        lowest, highest = min(rows for rows, _ in points.values()), max(rows for rows, _ in points.values())
        ends = [lowest / 3, highest * 3]
        for name, (rows, error) in points.items():
            label, color = LABELS[name]
            axes.plot(ends, [error * math.sqrt(rows / end) for end in ends], color=color, linewidth=1.2, label=label)
            axes.plot([rows], [error], "o", color=color, markersize=5)
        axes.set(xscale="log", yscale="log", xlabel="rows per sequence")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        style_axes(axes, f"{', '.join(one['run']['corpus'])}, n = {one['length']}, M = {one['ensemble_size']}")
    figure.axes[0].set_ylabel("standard error, nats per token")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
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
