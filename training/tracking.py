# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions that start experiment trackers with Accelerate and count the operations of a training step."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modeling_aogpt import AOGPTConfig, MDMEncoderConfig


def logger_types(tracker: str) -> str | None:
    """Return the argument `log_with` of `Accelerator`. Raise a `ValueError` if the tracker is not installed."""
    if tracker == "none":
        return None
    if find_spec(tracker) is None:
        raise ValueError(
            f"`tracker` is {tracker}, but the package {tracker} is not installed. Run `pip install {tracker}`, or set "
            "`tracker` to another tracker or to none."
        )
    return tracker


def start_tracker(accelerator: Any, tracker: str, output_dir: Path, settings: dict[str, Any], step: int) -> None:
    """Start to track a run, or continue after `step` steps. TensorBoard writes to `output_dir / "tensorboard"`."""
    if tracker == "tensorboard":
        options = {"purge_step": step + 1, "flush_secs": 30}  # remove later steps; they will be logged again
        # With `config`, Accelerate would create more folders.
        accelerator.init_trackers("tensorboard", init_kwargs={"tensorboard": options})
    elif tracker != "none":
        accelerator.init_trackers("aogpt", config=settings, init_kwargs={tracker: {"name": output_dir.name}})


def flops_per_token(config: AOGPTConfig | MDMEncoderConfig, length: int, is_frozen: bool = False) -> float:
    """Return the number of floating-point operations per token of a training step.

    The number includes 6 operations for each weight of the layers and the head (4 if `is_frozen`, because these get no
    gradients), and the products of attention (half of them if it is causal). All objectives of an encoder mask half of
    the tokens on average, and apply the head only to these. The number does not include LoRA and recomputation.
    Modulations are not included either, because they can be computed once per target position instead of once per row.
    """
    is_encoder = isinstance(config, MDMEncoderConfig)
    layers, width = config.num_hidden_layers, config.hidden_size
    projections = 2 * width * config.head_dim * (config.num_attention_heads + config.num_key_value_heads)
    mlp = (3 if config.gated_mlp else 2) * width * config.intermediate_size
    weights = layers * (projections + mlp) + width * config.vocab_size / (2 if is_encoder else 1)
    attention = 12.0 * layers * config.num_attention_heads * config.head_dim * length
    return (4.0 if is_frozen else 6.0) * weights + (attention if is_encoder else attention / 2)
