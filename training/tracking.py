# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Experiment trackers, through Accelerate, and the operations of a training step, by which its speed is judged."""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig

NONE = "none"


def logger_types(tracker: str) -> list[str]:
    """Return the `log_with` of `Accelerator`. Raises a `ValueError` for a tracker that is not installed."""
    if tracker == NONE:
        return []
    if find_spec(tracker) is None:
        raise ValueError(f"tracker={tracker} is not installed: `pip install {tracker}`, or choose another or {NONE}.")
    return [tracker]


def start_tracker(
    accelerator: Accelerator, tracker: str, output_dir: Path, settings: dict[str, Any], step: int
) -> None:
    """
    Begin to track a run, or go on after `step` steps.

    TensorBoard writes to `output_dir / "tensorboard"`. The others know the run by the name of its folder.
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


def flops_per_token(config: AOGPTConfig | MDMEncoderConfig, length: int) -> float:
    """
    Return the operations of a training step per token in the products that no implementation can leave out.

    These are 6 for every weight of the blocks and the head, and those of attention, of which causality spares a decoder
    half. Modulation is left out: it can be made once for each position instead of each row. Recomputing does not count.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * width**2 + 2 * width * config.intermediate_size) + width * config.vocab_size
    attention = 12.0 * layers * width * length
    return 6.0 * weights + (attention if isinstance(config, MDMEncoderConfig) else attention / 2)
