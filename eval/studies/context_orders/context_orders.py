# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Dependence of predictions on the order of their context, in decoders and encoders (Findings 5 and 6).

    python eval/studies/context_orders/context_orders.py RUN [RUN ...] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py. Runs of the same recipe with different seeds are grouped:
their folders must have the same name, or names that differ only in `-SEED` at the end. The command draws targets and
contexts in held-out text. A decoder predicts each target with many orders of its context. The command reports how much
the log-probability of a target differs between these orders. It also reports bits per byte if each prediction is the
mean over M orders of its context (Eq. 4 of the paper). The context of an encoder has no order, so its predictions do
not depend on M. If an encoder with the same seeds is among the runs, the differences between decoders and the encoder
are reported, too. The command writes context_orders.json and a report (see report.py). With the default options, a
decoder of 2 million parameters and 64 tokens takes about 3 minutes of one core.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import make_folder, write_json
from common.hardware import default_device
from common.results import read_finished_run
from eval.studies.runner.estimates import estimate
from eval.studies.runner.recipes import group_by_recipe
from eval.studies.runner.report import write_report
from eval.studies.runner.scores import held_out_rows
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.orders import random_orders


@dataclass
class Arguments(Options):
    """Options of eval/studies/context_orders/context_orders.py."""

    num_sequences: int = option(256, "Number of held-out sequences.", least=1)
    num_contexts: int = option(8, "Number of predictions per sequence. Each has its own target and context.", least=1)
    max_ensemble: int = option(64, "Number of orders of each context, the largest M. It must be a power of 2.", least=2)
    seed: int = option(0, "Seed of the targets, contexts and orders.", least=0)
    output_dir: Path = option(Path("runs/context_orders"), "Folder for context_orders.json and the report.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_ensemble & (self.max_ensemble - 1):
            raise ValueError(f"`max_ensemble` must be a power of 2, but is {self.max_ensemble}.")

    @property
    def ensemble_sizes(self) -> list[int]:
        """Return 1, 2, 4, ..., `max_ensemble`."""
        return [2**exponent for exponent in range(self.max_ensemble.bit_length())]


def count_predictions(length: int) -> tuple[int, int]:
    """Return how many different predictions an encoder and a decoder can make in a sequence of n = `length` tokens.

    A prediction has a target, and a context of other positions. For an encoder, the order of the context does not
    matter, so there are n 2^(n - 1) predictions. For a decoder, it matters, so there are floor(e n!) - 1 predictions.
    (This is Finding 5 of the paper.)
    """
    return length * 2 ** (length - 1), sum(length * math.perm(length - 1, size) for size in range(length))


def draw_predictions(
    num_sequences: int, num_contexts: int, length: int, generator: torch.Generator
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Draw `num_contexts` targets, and a context for each target, in every sequence.

    Each target and its context come from a random order. The context contains all positions with a lower rank than the
    target. The ranks of the targets are stratified: in every sequence, one rank is drawn from each of `num_contexts`
    equal parts of the order.

    Returns:
        Two tensors of shape `(num_sequences * num_contexts, length)`: whether a position is the target, and whether it
        is in the context.
    """
    ranks_of_positions = random_orders(num_sequences * num_contexts, length, generator=generator).argsort(dim=-1)
    strata = torch.arange(num_contexts).repeat(num_sequences)
    uniform = torch.rand(len(strata), generator=generator).double()  # in float32, the sum could be rounded up
    target_ranks = ((strata + uniform) / num_contexts * length).long()[:, None]
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
    """Return log-probabilities (predictions, num_orders) of the targets, with `num_orders` random orders per context.

    The tensors can be on another device than the model. The result is on the CPU. The context of an encoder has no
    order, so its values are the same for all orders.
    """
    input_ids, targets, context = (tensor.to(model.device) for tensor in (input_ids, targets, context))
    if not isinstance(model, AOGPTForAnyOrderLM):
        output = model.log_likelihood(input_ids, targets=targets, context=context, orders="left_to_right")
        return output.log_likelihood.cpu().double()[:, None].expand(-1, num_orders)
    scores = [
        model.log_likelihood(
            input_ids,
            targets=targets,
            context=context,
            context_orders=random_orders(*input_ids.shape, generator=generator),
        ).log_likelihood.cpu()
        for _ in progress_bar(range(num_orders), leave=False)
    ]
    return torch.stack(scores, dim=-1).double()


def ensemble_nats(scores: torch.DoubleTensor, size: int) -> float:
    """Return the mean negative log-probability, if probabilities are averaged over groups of `size` orders."""
    groups = scores.unflatten(-1, (-1, size))
    return -(groups.logsumexp(dim=-1) - math.log(size)).mean().item()


def measure_run(folder: Path, rows: dict[str, list[Any]], arguments: Arguments) -> dict[str, Any]:
    """Measure how much the predictions of a run's model depend on the orders of their contexts.

    Args:
        folder: Folder of the run.
        rows: Held-out sequences (see `held_out_rows`).
        arguments: Options of the command.

    Returns:
        A dictionary with the `architecture`, `num_parameters`, the `seed` of the run, and

        * `log10_predictions`: the decimal logarithm of the number of different predictions (see `count_predictions`);
        * `bits_per_byte` for each size of the ensemble;
        * `context_sizes`: the mean number of tokens in a context, for each stratum of `draw_predictions`;
        * `spreads`: the standard deviation of a log-probability over orders of its context in nats, averaged over the
          predictions of each stratum. It is 0 for contexts with fewer than two tokens, which have only one order.
    """
    generator = torch.Generator().manual_seed(arguments.seed)
    input_ids = torch.tensor(rows["input_ids"])
    num_sequences, length = input_ids.shape
    targets, context = draw_predictions(num_sequences, arguments.num_contexts, length, generator)
    input_ids = input_ids.repeat_interleave(arguments.num_contexts, dim=0)
    model = load_model(folder / "model").to(default_device())
    is_decoder = isinstance(model, AOGPTForAnyOrderLM)
    of_encoder, of_decoder = count_predictions(length)
    scores = score_context_orders(model, input_ids, targets, context, arguments.max_ensemble, generator)
    bits_per_nat = num_sequences * length / sum(rows["num_bytes"]) / math.log(2)  # from nats per token to bits per byte
    context_sizes, spreads = (
        values.view(num_sequences, -1).mean(dim=0).tolist()
        for values in (context.sum(dim=-1).double(), scores.std(dim=-1))
    )
    return {
        "architecture": "decoder" if is_decoder else "encoder",
        "num_parameters": model.num_parameters(),
        "seed": read_finished_run(folder)["arguments"]["seed"],
        "log10_predictions": math.log10(of_decoder if is_decoder else of_encoder),
        "bits_per_byte": {size: ensemble_nats(scores, size) * bits_per_nat for size in arguments.ensemble_sizes},
        "context_sizes": context_sizes,
        "spreads": spreads,
    }


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the results of each model: means over its runs (one per seed), with confidence intervals.

    In addition to the values of `measure_run`, a model has `spread`, the mean of `spreads`. A decoder also has `gain`:
    bits per byte without an ensemble, minus those with the largest ensemble. If there is one encoder, each decoder with
    the same seeds has `minus_encoder`: for each size, its bits per byte minus those of the encoder with the same seed.
    """
    models: dict[str, dict[str, Any]] = {}
    encoders = [of_seeds for of_seeds in runs.values() if of_seeds[0]["architecture"] == "encoder"]
    for name, of_seeds in runs.items():
        first, sizes = of_seeds[0], list(of_seeds[0]["bits_per_byte"])
        models[name] = entry = {
            **{key: first[key] for key in ("architecture", "num_parameters", "log10_predictions", "context_sizes")},
            "bits_per_byte": {size: estimate([run["bits_per_byte"][size] for run in of_seeds]) for size in sizes},
            "spreads": [estimate(values) for values in zip(*(run["spreads"] for run in of_seeds), strict=True)],
            "spread": estimate([fmean(run["spreads"]) for run in of_seeds]),
        }
        if first["architecture"] == "decoder":
            without, largest = ([run["bits_per_byte"][size] for run in of_seeds] for size in (sizes[0], sizes[-1]))
            entry["gain"] = estimate([one - other for one, other in zip(without, largest, strict=True)])
            if len(encoders) == 1 and [run["seed"] for run in encoders[0]] == [run["seed"] for run in of_seeds]:
                pairs = [[run["bits_per_byte"] for run in pair] for pair in zip(of_seeds, encoders[0], strict=True)]
                entry["minus_encoder"] = {size: estimate([a[size] - b[size] for a, b in pairs]) for size in sizes}
    return models


def make_table(models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a row for each model and, with one encoder, for the difference of each decoder from it."""
    table = {
        name: {
            "parameters": entry["num_parameters"],
            "predictions": f"10^{entry['log10_predictions']:.0f}",
            "spread": entry["spread"],
            **{f"M = {size}": value for size, value in entry["bits_per_byte"].items()},
            "gain": entry.get("gain"),
        }
        for name, entry in models.items()
    }
    for name, entry in models.items():
        if "minus_encoder" in entry:
            table[f"{name}, minus encoder"] = {f"M = {size}": value for size, value in entry["minus_encoder"].items()}
    return table


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished training run")
    arguments, others = parser.parse(argv)
    recipes = group_by_recipe(
        [{"run": str(folder), "arguments": read_finished_run(folder)["arguments"]} for folder in others.runs]
    )
    first, *remaining = others.runs
    rows = {folder: held_out_rows(folder, arguments.num_sequences) for folder in others.runs}
    if other := next((run for run in remaining if rows[run]["input_ids"] != rows[first]["input_ids"]), None):
        raise ValueError(
            f"All runs must have the same held-out sequences, so that their models make the same predictions, but "
            f"those of {other} and {first} differ. Use runs with the same corpus, tokenizer and `sequence_length`."
        )
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the long measurements
        runs = {recipe: [] for recipe in recipes}
        for recipe, group in recipes.items():
            for folder in (Path(run["run"]) for run in sorted(group, key=lambda run: run["arguments"]["seed"])):
                runs[recipe].append(measure_run(folder, rows[folder], arguments))
    models = summarize(runs)
    results = {
        "title": "Orders of the context",
        "table": make_table(models),
        "plotted": ["spread", *(f"M = {size}" for size in arguments.ensemble_sizes)],
        "command": command_line(__file__, argv),
        "num_sequences": len(rows[first]["input_ids"]),
        "models": models,
    }
    write_json(arguments.output_dir / "context_orders.json", results)
    write_report(arguments.output_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
