# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings of a run: its arguments, as saved in checkpoints and results.json. They are compared when it is resumed."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.data_arguments import DataArguments
from common.results import WITHOUT_EFFECT
from training.architecture import DEFAULTS, Architecture
from training.arguments import TrainingArguments

# Keys that may change when a run is resumed, if the learning rates and left-to-right fractions of all finished steps
# stay the same (see schedules.py).
SCHEDULE = {"max_steps", "decay_steps", "left_to_right_steps"}


def to_settings(model: Architecture, data: DataArguments, training: TrainingArguments) -> dict[str, Any]:
    """Return all keys and values of a run, in a form that JSON can store."""
    values = model | asdict(data) | asdict(training)
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}


def changed_settings(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the saved and the current value of each setting that has changed and may affect the result."""
    defaults = to_settings(DEFAULTS, DataArguments(), TrainingArguments())
    saved, current = defaults | saved, defaults | current  # runs of earlier versions do not have all settings
    values = {key: (saved.get(key), current.get(key)) for key in sorted(saved.keys() | current.keys())}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1] and key not in WITHOUT_EFFECT}


def check_same_run(saved: dict[str, Any], current: dict[str, Any], place: Path) -> None:
    """Raise a `ValueError` if settings, except those in `SCHEDULE`, have changed and may affect the result."""
    changed = {key: pair for key, pair in changed_settings(saved, current).items() if key not in SCHEDULE}
    if changed:
        differences = "; ".join(f"{key}: previously {then!r}, now {now!r}" for key, (then, now) in changed.items())
        raise ValueError(
            f"{place} belongs to a run with other settings ({differences}). Restore the old settings, or choose "
            "another `output_dir`. To train its weights with other settings, run `python "
            f"training/export_checkpoint.py {place} MODEL`, and start a new run with `--init_from MODEL` and another "
            "`--output_dir`."
        )
