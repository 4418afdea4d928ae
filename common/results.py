# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""`results.json`, which a training run writes when it is finished."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from common.data import DataArguments
from common.files import read_json

ORDER_SEED = 20250624  # of the random orders of evaluations: a sequence has the same order in every run and step
# Keys of bits per byte in `results.json`, and their names in reports.
ORDER_NAMES = {"left_to_right": "left to right", "any_order": "random orders"}


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return the results of a run, or None if it is not finished. Raise a `ValueError` if the file is not valid."""
    path = folder / "results.json"
    return read_json(path, ("arguments", "steps"), "training/pretrain.py") if path.exists() else None


def read_finished_run(folder: Path) -> tuple[dict[str, Any], DataArguments]:
    """Return the results of a run, and the options of its data. Raise a `ValueError` if it is not finished."""
    results = read_results(folder)
    if results is None:
        raise ValueError(f"{folder} has no results.json; finish the run first with training/pretrain.py.")
    names = {field.name for field in fields(DataArguments)}
    data = DataArguments(**{name: value for name, value in results["arguments"].items() if name in names})
    data.tokenizer = str(folder / "model")
    return results, data
