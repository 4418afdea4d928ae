# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""results.json: what a finished run was and how it went. Only finished runs have one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.files import whole_file


def loss_curve(losses: list[float], learning_rate_at: Callable[[int], float], window: int) -> dict[str, list[float]]:
    """The mean loss of every `window` steps, placed at the last of them, with the learning rate of that step."""
    ends = [*range(window, len(losses), window), len(losses)]
    return {
        "step": ends,
        "loss": [sum(losses[start:end]) / (end - start) for start, end in zip([0, *ends], ends, strict=False)],
        "learning_rate": [learning_rate_at(end - 1) for end in ends],
    }


def read_results(folder: Path) -> dict[str, Any] | None:
    """The results of a finished run, None before."""
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_results(results: dict[str, Any], folder: Path) -> None:
    with whole_file(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
