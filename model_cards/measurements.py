# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Facts and measurements for a model card. They are read from the JSON files of training and evaluation."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from common.corpora import is_hub_name
from common.files import read_json
from common.reports import with_error
from common.results import ORDER_KINDS, WITHOUT_EFFECT, is_padded, model_evaluation
from eval.protocols import EVALUATION_SETS
from eval.tables import CLEAN, ZERO_SHOT_KEYS, describe_orders, describe_text, list_departures
from training.arguments import TrainingArguments, order_settings
from training.grpo import UNUSED, GRPOArguments

COMMIT = "0" * 40  # form of the identity of a model on the Hub; the identity of a model in a folder is shorter
ORDER_SETTINGS = (
    *order_settings(TrainingArguments()),
    *("left_to_right_fraction", "final_left_to_right_fraction", "left_to_right_steps"),
)


@dataclass
class Measurement(EvalResult):
    """Measured value for the metadata of a card, with its standard error (None if it is unknown)."""

    standard_error: float | None = None

    @property
    def shown(self) -> str:
        """The value with its standard error, rounded, as shown in the card."""
        return with_error(self.metric_value, self.standard_error, 3 if self.metric_type == "bits_per_byte" else 2)


# ---------------------------------------------------------------------------------------------------- training runs


def add_run_facts(facts: dict[str, Any], card: str, run: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a card and of a run. Raise a `ValueError` if they contradict each other."""
    corpus = _join_names(results["arguments"]["corpus"])
    if facts.get("corpus", corpus) != corpus:
        raise ValueError(
            f"The card {card!r} is for models trained on {facts['corpus']}, but {run} was trained on {corpus}. Remove "
            "`--card` to use the default card, or pass a YAML file for this run."
        )
    if facts.get("hyperparameters"):
        raise ValueError(f"The card {card!r} has `hyperparameters`, but those of a run are its settings. Remove them.")
    is_from_hub = len(results.get("initial_weights") or "") == len(COMMIT)
    return {
        "training_data": describe_corpus(results),
        **({"base_model": results["arguments"]["init_from"]} if is_from_hub else {}),
        **facts,
        "training_run": describe_run(results),
        "hyperparameters": select_hyperparameters(results),
    }


def select_hyperparameters(results: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a finished run that are shown in the card. Keys are as in training/configs/."""
    arguments = results["arguments"] | {"mixed_precision": results["hardware"]["mixed_precision"]}
    if arguments.get("init_from") is not None:
        arguments["init_from"] = remove_folders(arguments["init_from"])
    draws_orders = arguments.get("objective", "any_order") == "any_order"
    kind, unused = (GRPOArguments, UNUSED) if "reward" in arguments else (TrainingArguments, set())
    names = [item.name for item in fields(kind) if item.name not in WITHOUT_EFFECT | unused]
    return {
        name: arguments[name]
        for name in (*names, "sequence_length", "mixed_precision")
        if arguments.get(name) is not None and (draws_orders or name not in ORDER_SETTINGS)
    }


def read_run_measurements(results: dict[str, Any], task: str) -> list[Measurement]:
    """Return bits per byte on the held-out text of a finished run. `task` is the task of the model on the Hub."""
    values, metric = model_evaluation(results), "bits_per_byte"
    corpus = _join_names(results["arguments"].get("validation_files") or results["arguments"]["corpus"])
    quantization = results["arguments"].get("quantization")
    split = "held out, answers only" if results["corpus"].get("examples") else "held out"
    split += f", measured with {quantization} projections" if quantization else ""
    held_out = results["corpus"]["validation"]
    count = held_out.get("sequences", 0) + held_out.get("left_out_documents", 0)  # 0 in runs of earlier versions
    split += f", {values['sequences']:,} of {count:,} sequences" if values.get("sequences", count) < count else ""
    names = {"dataset_type": corpus, "dataset_name": corpus, "dataset_split": split, "metric_type": metric}
    return [
        Measurement(task, metric_name=f"bits per byte, {orders}", metric_value=values[key], **names)
        for key, orders in ORDER_KINDS.items()
        if key in values  # encoders are not evaluated left to right
    ]


def describe_corpus(results: dict[str, Any]) -> str:
    """Describe the training data of a finished run in a few words."""
    corpus, name = results["corpus"], _join_names(results["arguments"]["corpus"])
    train, size = corpus["train"], "streamed"
    if "tokens" in train:
        left_out = train.get("left_out_documents", 0)
        left_out = f" (including documents that were left out as too long: {left_out:,})" if left_out else ""
        size = f"{train['documents']:,} documents with {train['tokens']:,} tokens{left_out}"
    return f"{name}: {size}, {corpus['packing']}. Tokenizer: {remove_folders(corpus['tokenizer'])}."


def describe_run(results: dict[str, Any]) -> str:
    """Describe the length and the machine of a finished run, and name the model that it started from."""
    corpus, machine, initial_model = results["corpus"], results["hardware"], results["arguments"].get("init_from")
    padding = ", padding included," if is_padded(corpus) else ""
    text = (
        f"The training took {results['steps']:,} steps with {results['tokens']:,} tokens{padding} and "
        f"{results['train_seconds'] / 3600:.3g} hours. It ended on this machine: {machine['device_name']}, "
        f"{machine['num_processes']} process{'es' * (machine['num_processes'] > 1)}."
    )
    return text if initial_model is None else f"{text} It started from the weights of {remove_folders(initial_model)}."


def _join_names(names: list[str]) -> str:
    """Return names of files or datasets. Paths are replaced by the names of the files."""
    return ", ".join(map(remove_folders, names))


def remove_folders(name: str) -> str:
    """Return a Hub name unchanged. For a path, return only the last part, because names of folders are private.

    For the model of a run, RUN/model, this is the name of the run.
    """
    if is_hub_name(name) and not os.path.isdir(name):
        return name
    path = Path(name)
    return path.parent.name if path.name == "model" and path.parent.name else path.name


# -------------------------------------------------------------------------------------------------------- evaluations


def read_zero_shot_measurements(
    path: Path, task: str, num_parameters: int, weights: str | None = None
) -> list[Measurement]:
    """Return the measurements in a JSON file of eval/zero_shot.py. `task` is the task of the model on the Hub.

    `num_parameters` and `weights` (the result of `identity_of_weights`) describe the model to publish. `weights` is
    compared with the identity in the file. If one of them is None, numbers of parameters are compared, which an adapter
    increases. Raise a `ValueError` if another command wrote the file, or if it contains results of another model.
    """
    results = read_json(path, ZERO_SHOT_KEYS, "eval/zero_shot.py")
    measured = results.get("weights")
    if measured != weights if measured and weights else results["num_parameters"] != num_parameters:
        raise ValueError(
            f"{path} contains results of other weights than those to publish: {results.get('model')} with "
            f"{results['num_parameters']} parameters (to publish: {num_parameters}). Run eval/zero_shot.py on the "
            "model to publish, and pass its results file in `--results`."
        )
    return [
        Measurement(
            task,
            **_name_dataset(name, dataset),
            dataset_split=_describe_split(name, results, measure),
            metric_type=metric,
            metric_name=f"{metric.replace('_', ' ')}, {describe_orders(measure, results['arguments'])}",
            metric_value=values[metric],
            standard_error=values[f"{metric}_standard_error"],
        )
        for name, dataset in results["datasets"].items()
        for measure, values in dataset["measures"].items()
        for metric in ("perplexity", "bits_per_byte")
        if metric in values
    ]


def _describe_split(name: str, results: dict[str, Any], measure: str) -> str:
    """Return the split of a dataset, and how it was scored. For a benchmark, list differences from published scores."""
    dataset = results["datasets"][name]
    if name not in EVALUATION_SETS:
        return f"all, {describe_text(name, results, measure)}"
    split = f"{dataset['split']}, {results['protocol']} protocol"
    scored = dataset["measures"][measure]["sequences"]
    if scored < dataset["sequences"]:
        split += f", {scored} of {dataset['sequences']} sequences"
    departures = [departure for departure in list_departures(results, measure, [name]) if departure != CLEAN]
    return split + (f", but with {'; '.join(departures)}" if departures else "")


def check_labels(measurements: list[Measurement]) -> None:
    """Raise a `ValueError` if two measurements would have the same label in the card."""
    labels = [f"{row.dataset_name}, {row.dataset_split}, {row.metric_name}" for row in measurements]
    if same := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(
            f"`--results` contains two results with the label {same[0]!r}, so they could not be told apart in the "
            "card. Remove one of them, or rename the text files and evaluate again."
        )


def _name_dataset(name: str, dataset: dict[str, Any]) -> dict[str, str]:
    """Return the title, Hub name and configuration of a benchmark dataset, or the names of text files."""
    if name not in EVALUATION_SETS:
        files = ", ".join(Path(file).name for file in dataset["files"])
        return {"dataset_name": files, "dataset_type": files}
    owner, repository, config = EVALUATION_SETS[name].hub.removeprefix("hf://datasets/").split("/")[:3]
    hub_name = f"{owner}/{repository.partition('@')[0]}"
    return {"dataset_name": EVALUATION_SETS[name].title, "dataset_type": hub_name, "dataset_config": config}
