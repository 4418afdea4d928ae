# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""results.json of a training run. Only finished runs have one."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from common.data import DataArguments
from common.files import read_json

ORDER_SEED = 20250624  # every run, step and process scores a sequence in the same random order
# Keys of measured figures, and their names in reports.
ORDER_NAMES = {"left_to_right": "left to right", "any_order": "random orders"}


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return the results of a run, or None if it is not finished. Raises a `ValueError` for any other file."""
    path = folder / "results.json"
    return read_json(path, ("arguments", "steps"), "training/pretrain.py") if path.exists() else None


def read_finished_run(folder: Path) -> tuple[dict[str, Any], DataArguments]:
    """Return the results of a run and its data, with its own tokenizer. Raises a `ValueError` if it is not finished."""
    results = read_results(folder)
    if results is None:
        raise ValueError(f"{folder} has no results.json; finish the run first (training/pretrain.py).")
    names = {field.name for field in fields(DataArguments)}
    data = DataArguments(**{name: value for name, value in results["arguments"].items() if name in names})
    data.tokenizer = str(folder / "model")
    return results, data
