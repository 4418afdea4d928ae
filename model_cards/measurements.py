# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Facts of a run and figures of its evaluation for a card, from the JSON files of training and evaluation."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResultEntry

from common.corpora import is_hub_name
from common.files import read_json
from common.reports import with_error
from common.results import ORDER_NAMES
from eval.protocols import EVALUATION_SETS

# Settings of a run that its card shows, and their names there.
HYPERPARAMETERS = {
    "init_from": "initial weights",
    "objective": "objective",
    "max_steps": "steps",
    "batch_size": "sequences per step",
    "sequence_length": "tokens per sequence",
    "orders": "orders",
    "block_length": "block length of orders",
    "stride": "stride of orders",
    "left_to_right_fraction": "fraction of left-to-right orders",
    "final_left_to_right_fraction": "fraction of left-to-right orders at the end",
    "learning_rate": "learning rate",
    "final_learning_rate": "final learning rate",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "adam_beta1": "Adam beta 1",
    "adam_beta2": "Adam beta 2",
    "max_grad_norm": "gradient clipping",
    "ema_decay": "moving average of the weights",
    "mixed_precision": "mixed precision",
    "seed": "seed",
}
OF_ORDERS = {"orders", "block_length", "stride", "left_to_right_fraction", "final_left_to_right_fraction"}
ZERO_SHOT_KEYS = ("model_type", "num_parameters", "protocol", "arguments", "datasets")


@dataclass(frozen=True)
class Measurement:
    """
    One measured figure.

    Args:
        dataset_name: Name of the text, in words.
        split: Its split, in words.
        metric_type: `"bits_per_byte"` or `"perplexity"`.
        orders: The orders in which the text was predicted, in words.
        value: The figure.
        standard_error: Its error, or None if it is not known.
        dataset_id: Name of the data set on the Hub, if it is there.
        dataset_config: Its configuration there.
    """

    dataset_name: str
    split: str
    metric_type: str
    orders: str
    value: float
    standard_error: float | None = None
    dataset_id: str | None = None
    dataset_config: str | None = None

    @property
    def metric_name(self) -> str:
        return f"{self.metric_type.replace('_', ' ')}, {self.orders}"

    @property
    def shown(self) -> str:
        return with_error(self.value, self.standard_error, 3 if self.metric_type == "bits_per_byte" else 2)


# ------------------------------------------------------------------------------------------------------------ a run


def run_hyperparameters(results: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a finished run that a card shows, by their names there."""
    arguments = results["arguments"] | {"mixed_precision": results["hardware"]["mixed_precision"]}
    if arguments.get("init_from") is not None:
        arguments["init_from"] = public_name(arguments["init_from"])
    draws_orders = arguments.get("objective", "any_order") == "any_order"
    return {
        words: arguments[name]
        for name, words in HYPERPARAMETERS.items()
        if arguments.get(name) is not None and (draws_orders or name not in OF_ORDERS)
    }


def run_measurements(run: Path, results: dict[str, Any]) -> list[Measurement]:
    """
    Return bits per byte of the held-out text of a finished run, with the errors of its report (`report.json`).

    Raises:
        ValueError: If the report was made of another run, or of this one before it began anew.
    """
    path = run / "report.json"
    if path.is_file():
        report = read_json(path, ("run", "bits_per_byte"), "eval/benchmarks/quickstart_report.py")
        if any(results.get(key) != value for key, value in report["run"].items()):
            raise ValueError(f"{path} is the report of another run: make it anew (quickstart_report.py), or remove it.")
        figures = report["bits_per_byte"]
    else:
        figures = results["evaluations"][-1]
    name = corpus_name(results)
    return [
        Measurement(name, "held out", "bits_per_byte", words, figures[key], figures.get(f"{key}_standard_error"))
        for key, words in ORDER_NAMES.items()
        if key in figures  # an encoder has no left to right
    ]


def describe_corpus(results: dict[str, Any]) -> str:
    """Describe in a sentence the data of a finished run."""
    corpus = results["corpus"]
    train, tokenizer, name = corpus["train"], public_name(corpus["tokenizer"]), corpus_name(results)
    if "tokens" not in train:
        return f"{name}: streamed, {corpus['packing']}. Tokenizer: {tokenizer}."
    return (
        f"{name}: {train['documents']:,} documents, {train['tokens']:,} tokens ({train['bytes']:,} bytes), "
        f"{corpus['packing']}. Tokenizer: {tokenizer}."
    )


def corpus_name(results: dict[str, Any]) -> str:
    return ", ".join(map(public_name, results["arguments"]["corpus"]))


def public_name(name: str) -> str:
    """Return a name of the Hub as it is, and the last part of a path: folders of a machine are private."""
    return name if is_hub_name(name) and not os.path.isdir(name) else Path(name).name


# -------------------------------------------------------------------------------------------------- an evaluation


def zero_shot_measurements(
    path: Path, model_type: str, num_parameters: int, weights: str | None = None
) -> list[Measurement]:
    """
    Return the figures of a JSON file of eval/zero_shot.py.

    Args:
        path: The file.
        model_type: Of the published model.
        num_parameters: Of the published model.
        weights: `identity_of_weights` of the published model. Results of a model on the Hub have none.

    Raises:
        ValueError: If it is none, or another model's: of another type, number of parameters or weights.
    """
    results = read_json(path, ZERO_SHOT_KEYS, "eval/zero_shot.py")
    measured = results["model_type"], results["num_parameters"]
    if measured != (model_type, num_parameters):
        raise ValueError(
            f"{path} holds results of another model: {measured[0]}, {measured[1]} parameters, but this one is "
            f"{model_type}, {num_parameters} parameters. Give results of the model that is published (--results)."
        )
    scored = results.get("weights")
    if None not in (scored, weights) and scored != weights:
        raise ValueError(
            f"{path} holds results of other weights, those of {results.get('model')} when it was scored: score the "
            "model that is published (eval/zero_shot.py), and give these results (--results)."
        )
    return [
        Measurement(
            dataset_name=title_of(name, found),
            split=f"{found.get('split', 'all')}, {results['protocol']} protocol",
            metric_type=metric,
            orders=orders_of(measure, results["arguments"]),
            value=figures[metric],
            standard_error=figures[f"{metric}_standard_error"],
            dataset_id=dataset_id,
            dataset_config=dataset_config,
        )
        for name, found in results["datasets"].items()
        for dataset_id, dataset_config in [hub_place_of(name)]
        for measure, figures in found["measures"].items()
        for metric in ("perplexity", "bits_per_byte")
        if metric in figures
    ]


def orders_of(measure: str, arguments: dict[str, Any]) -> str:
    """Describe the orders of a measure of eval/zero_shot.py."""
    if measure == "left_to_right":
        return ORDER_NAMES[measure]
    contexts = f", {arguments['ensemble_size']} context orders" if measure == "ensemble" else ""
    number = f", {arguments['num_orders']} per sequence" if arguments["num_orders"] > 1 else ""
    return f"{ORDER_NAMES['any_order']}{contexts}{number}"


def title_of(name: str, found: dict[str, Any]) -> str:
    """Return a benchmark's title, or the names of the files that were scored."""
    if name in EVALUATION_SETS:
        return EVALUATION_SETS[name].title
    return ", ".join(Path(file).name for file in found["files"])


def hub_place_of(name: str) -> tuple[str | None, str | None]:
    """Return the name and configuration of a benchmark on the Hub, or None for both if it is not there."""
    if name not in EVALUATION_SETS:
        return None, None
    owner, repository, config = EVALUATION_SETS[name].hub.removeprefix("hf://datasets/").split("/")[:3]
    return f"{owner}/{repository.partition('@')[0]}", config


def benchmark_entries(measurements: list[Measurement]) -> list[EvalResultEntry]:
    """
    Return the entries of `.eval_results/*.yaml`, the Hub's format for results on its own data sets: their perplexities,
    and nothing of other text. A task is named by its configuration of the data set.
    """
    return [
        EvalResultEntry(
            dataset_id=row.dataset_id,
            task_id=row.dataset_config,
            value=row.value,
            notes=f"{row.dataset_name}, {row.split}; {row.metric_name}",
        )
        for row in measurements
        if row.dataset_id is not None and row.metric_type == "perplexity"
    ]
