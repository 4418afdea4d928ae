# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers, through Accelerate."""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import Accelerator

NONE = "none"


def logger_types(tracker: str) -> list[str]:
    """What `Accelerator(log_with=...)` takes. Raises a `ValueError` for a tracker that is not installed."""
    if tracker == NONE:
        return []
    if find_spec(tracker) is None:
        raise ValueError(f"tracker={tracker} is not installed: `pip install {tracker}`, or choose another or {NONE}.")
    return [tracker]


def start_tracker(
    accelerator: Accelerator, tracker: str, output_dir: Path, settings: dict[str, Any], step: int
) -> None:
    """
    Begins to track a run, or goes on after `step` steps. TensorBoard writes to `output_dir / "tensorboard"`; the others
    know the run by the name of its folder, and go on with it.
    """
    run_id = hashlib.sha256(str(output_dir.resolve()).encode()).hexdigest()[:16]
    options = {
        "tensorboard": {"purge_step": step + 1, "flush_secs": 30},  # what came after the checkpoint comes again
        "wandb": {"name": output_dir.name, "id": run_id, "resume": "allow", "dir": str(output_dir)},
        "trackio": {"name": output_dir.name, "resume": "allow"},
    }
    if tracker == "tensorboard":
        accelerator.init_trackers("tensorboard", init_kwargs=options)  # a folder; settings would become further ones
    elif tracker != NONE:
        accelerator.init_trackers("aogpt", config=settings, init_kwargs=options)
