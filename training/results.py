# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""results.json: what a finished run was and how it went. Only finished runs have one."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from training.arguments import TrainingArguments
from training.data import DataArguments
from training.files import read_json, write_json
from training.optimization import learning_rate_at


def loss_curve(losses: list[float], training: TrainingArguments) -> dict[str, list[float]]:
    """The mean loss of every `logging_steps` steps, placed at the last of them, with the learning rate of that step."""
    window = training.logging_steps
    ends = [*range(window, len(losses), window), len(losses)]
    return {
        "step": ends,
        "loss": [sum(losses[start:end]) / (end - start) for start, end in zip([0, *ends], ends, strict=False)],
        "learning_rate": [learning_rate_at(end - 1, training) for end in ends],
    }


def read_results(folder: Path) -> dict[str, Any] | None:
    """The results of a finished run, None before. Raises a `ValueError` if the file is not what a run writes."""
    path = folder / "results.json"
    return read_json(path, ("arguments", "steps"), "training/pretrain.py") if path.exists() else None


def read_finished_run(folder: Path) -> tuple[dict[str, Any], DataArguments]:
    """The results of a run, and its data with its own tokenizer. Raises a `ValueError` for a run without results."""
    results = read_results(folder)
    if results is None:
        raise ValueError(f"{folder} has no results.json; finish the run first (training/pretrain.py).")
    names = {field.name for field in fields(DataArguments)}
    data = DataArguments(**{name: value for name, value in results["arguments"].items() if name in names})
    data.tokenizer = str(folder / "model")
    return results, data


def write_results(results: dict[str, Any], folder: Path) -> None:
    write_json(folder / "results.json", results)
