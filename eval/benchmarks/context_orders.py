# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Dependence of predictions on the order of their context, in decoders and encoders (Findings 5 and 6).

    python eval/benchmarks/context_orders.py RUN [RUN ...] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py. Folders with the same name contain the same model, trained
with different seeds. The command draws targets and contexts in held-out text. A decoder predicts each target with many
orders of its context. The command reports how much the log-probability of a target differs between these orders. It
also reports bits per byte if each prediction is the mean over M orders of its context (Eq. 4 of the paper). The context
of an encoder has no order, so its predictions do not depend on M. The command writes context_orders.md, .json and .png.
"""

import math
import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from common.commands import Options, Parser, one_line_errors, option, progress_bar
from common.files import write_json, write_text
from common.models import Model, load_model
from common.reports import markdown_table, save_figure, style_axes
from eval.benchmarks.study_results import estimate, format_estimate, held_out_rows
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.orders import random_orders


@dataclass
class Arguments(Options):
    """Options of eval/benchmarks/context_orders.py."""

    num_sequences: int = option(64, "Number of held-out sequences.", least=1)
    num_contexts: int = option(8, "Number of predictions per sequence. Each has its own target and context.", least=1)
    max_ensemble: int = option(64, "Number of orders of each context, the largest M. It must be a power of 2.", least=2)
    seed: int = option(0, "Seed of the targets, contexts and orders.", least=0)
    output_dir: Path = option(Path("runs/context_orders"), "Folder for context_orders.md, .json and .png.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_ensemble & (self.max_ensemble - 1):
            raise ValueError(f"`max_ensemble` must be a power of 2, but is {self.max_ensemble}.")

    @property
    def ensemble_sizes(self) -> list[int]:
        """Return 1, 2, 4, ..., `max_ensemble`."""
        return [2**exponent for exponent in range(self.max_ensemble.bit_length())]


def count_predictions(length: int) -> tuple[int, int]:
    """
    Return how many different predictions an encoder and a decoder can make in a sequence of n = `length` tokens.

    A prediction has a target, and a context of other positions. For an encoder, the order of the context does not
    matter, so there are n 2^(n - 1) predictions. For a decoder, it matters, so there are floor(e n!) - 1 predictions.
    (This is Finding 5 of the paper.)
    """
    sizes = range(length)
    return (
        sum(length * math.comb(length - 1, size) for size in sizes),
        sum(length * math.perm(length - 1, size) for size in sizes),
    )


def draw_predictions(
    num_sequences: int, num_contexts: int, length: int, generator: torch.Generator
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """
    Draw `num_contexts` targets, and a context for each target, in every sequence.

    Each target and its context come from a random order. The context contains all positions with a lower rank than the
    target. The ranks of the targets are stratified: in every sequence, one rank is drawn from each of `num_contexts`
    equal parts of the order.

    Returns:
        Two tensors of shape `(num_sequences * num_contexts, length)`: whether a position is the target, and whether it
        is in the context.
    """
    ranks_of_positions = random_orders(num_sequences * num_contexts, length, generator=generator).argsort(dim=-1)
    strata = torch.arange(num_contexts).repeat(num_sequences)
    target_ranks = ((strata + torch.rand(len(strata), generator=generator)) / num_contexts * length).long()[:, None]
    return ranks_of_positions == target_ranks, ranks_of_positions < target_ranks


@torch.no_grad()
def score_context_orders(
    model: Model,
    input_ids: torch.LongTensor,
    targets: torch.BoolTensor,
    context: torch.BoolTensor,
    num_orders: int,
    generator: torch.Generator,
) -> torch.DoubleTensor:
    """
    Return the log-probabilities (predictions, num_orders) of the targets, with `num_orders` random orders per context.

    The context of an encoder has no order, so its values are the same for all orders.
    """
    if not isinstance(model, AOGPTForAnyOrderLM):
        output = model.conditional_log_likelihood(input_ids, targets, context, orders="left_to_right")
        return output.log_likelihood.double()[:, None].expand(-1, num_orders)
    scores = [
        model.conditional_log_likelihood(
            input_ids, targets, context, context_orders=random_orders(*input_ids.shape, generator=generator)
        ).log_likelihood
        for _ in progress_bar(range(num_orders), leave=False)
    ]
    return torch.stack(scores, dim=-1).double()


def ensemble_nats(scores: torch.DoubleTensor, size: int) -> float:
    """Return the mean negative log-probability, if probabilities are averaged over groups of `size` orders."""
    groups = scores.unflatten(-1, (-1, size))
    return -(groups.logsumexp(dim=-1) - math.log(size)).mean().item()


def measure_run(folder: Path, arguments: Arguments) -> dict[str, Any]:
    """
    Return `num_parameters`, `bits_per_byte` (for each size of the ensemble) and `spread` of a run.

    The spread is the standard deviation of a log-probability over orders of its context, in nats. It is averaged over
    all predictions with at least two tokens of context.
    """
    rows = held_out_rows(folder, arguments.num_sequences)
    generator = torch.Generator().manual_seed(arguments.seed)
    input_ids = torch.tensor(rows["input_ids"])
    num_sequences, length = input_ids.shape
    targets, context = draw_predictions(num_sequences, arguments.num_contexts, length, generator)
    input_ids = input_ids.repeat_interleave(arguments.num_contexts, dim=0)
    model = load_model(folder / "model")
    scores = score_context_orders(model, input_ids, targets, context, arguments.max_ensemble, generator)
    bits_per_nat = num_sequences * length / sum(rows["num_bytes"]) / math.log(2)  # from nats per token to bits per byte
    is_ordered = context.sum(dim=-1) > 1
    return {
        "num_parameters": model.num_parameters(),
        "bits_per_byte": {size: ensemble_nats(scores, size) * bits_per_nat for size in arguments.ensemble_sizes},
        "spread": scores[is_ordered].std(dim=-1).mean().item(),
    }


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the results of each model: means over its runs (one per seed), with confidence intervals."""
    return {
        name: {
            "num_parameters": of_seeds[0]["num_parameters"],
            "bits_per_byte": {
                size: estimate([run["bits_per_byte"][size] for run in of_seeds])
                for size in of_seeds[0]["bits_per_byte"]
            },
            "spread": estimate([run["spread"] for run in of_seeds]),
        }
        for name, of_seeds in runs.items()
    }


def _format_report(results: dict[str, Any], arguments: Arguments) -> str:
    sizes = [size for size in arguments.ensemble_sizes if size in (1, 4, 16, arguments.max_ensemble)]
    rows = [
        (
            name,
            f"{entry['num_parameters'] / 1e6:.2f} M",
            format_estimate(entry["spread"]),
            *(format_estimate(entry["bits_per_byte"][size]) for size in sizes),
        )
        for name, entry in results["models"].items()
    ]
    header = ["model", "parameters", "spread, nats", *(f"M = {size}" for size in sizes)]
    return f"""# Orders of the context

![Bits per byte against the size of the ensemble](context_orders.png)

The table shows bits per byte in random orders, if each prediction is the mean over M random orders of its context. All
models make the same {arguments.num_contexts} predictions in each of {arguments.num_sequences} held-out sequences. If a
model has several seeds, values are means ± half the width of the 95 % confidence interval (Student's t). The *spread*
is the standard deviation of the log-probability of a token over orders of its context. It is 0 for an encoder, because
the context of an encoder has no order.

{markdown_table(header, rows, "l" + "r" * (len(header) - 1))}

Written by `{results["command"]}`.
"""


def _plot(models: dict[str, dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, entry), color in zip(models.items(), colormaps["tab10"].colors * len(models), strict=False):
        sizes, values = zip(*entry["bits_per_byte"].items(), strict=True)
        errors = [value["half_width"] or 0.0 for value in values]
        axes.errorbar(sizes, [value["mean"] for value in values], errors, color=color, capsize=2, label=name)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="size M of the ensemble over orders of the context", ylabel="bits per byte")
    style_axes(axes, "Held-out text, random orders")
    axes.legend(frameon=False)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished training run")
    arguments, others = parser.parse(argv)
    runs = defaultdict(list)
    for folder in others.runs:
        runs[folder.resolve().name].append(measure_run(folder, arguments))
    results = {
        "command": shlex.join(["python", "eval/benchmarks/context_orders.py", *argv]),
        "models": summarize(runs),
    }
    folder = arguments.output_dir
    _plot(results["models"], folder / "context_orders.png")
    write_text(folder / "context_orders.md", _format_report(results, arguments))
    write_json(folder / "context_orders.json", results)
    print(_format_report(results, arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
