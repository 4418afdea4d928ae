# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The model that training begins with: new, or any of this package's that was trained or converted before."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM

Model = AOGPTForAnyOrderLM | MDMEncoderForMaskedLM


def read_any_config(name_or_path: str | Path, **options: Any) -> PreTrainedConfig:
    """The configuration of a model in a folder or on the Hub. Raises a `ValueError` if there is none."""
    try:
        return AutoConfig.from_pretrained(name_or_path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"There is no model {str(name_or_path)!r}, on the Hub or as a folder: {error}") from error


def read_config(name_or_path: str | Path, **options: Any) -> AOGPTConfig:
    """The configuration of a decoder or encoder of this package. Raises a `ValueError` if it is none of these."""
    config = read_any_config(name_or_path, **options)
    if not isinstance(config, AOGPTConfig):  # an encoder's is one too
        raise ValueError(
            f"{name_or_path} is a model of type {config.model_type!r}, not of this package. A GPT-2 is converted by "
            "training/convert_gpt2.py, released files by modeling_aogpt/convert_reference_checkpoint.py."
        )
    return config


def load_whole(model_class: Any, name_or_path: str | Path, **options: Any) -> PreTrainedModel:
    """
    A model with the weights of its folder or Hub repository, none of which is made up.

    Args:
        model_class: A class of models, or one such as `AutoModel`; `options` are those of its `from_pretrained`.

    Raises:
        ValueError: If weights are missing, damaged or of other shapes, or, of a model of this package, too many. (Other
            models' may come with those of a head that is not asked for.)
    """
    try:
        model, report = model_class.from_pretrained(name_or_path, output_loading_info=True, **options)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The weights of {name_or_path} are missing or damaged: {error}") from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(f"The weights of {name_or_path} have not the shapes of its config.json.") from error
    if not isinstance(model.config, AOGPTConfig):
        del report["unexpected_keys"]
    if wrong := {kind: sorted(map(str, keys)) for kind, keys in report.items() if keys}:
        raise ValueError(f"The weights of {name_or_path} are not those of its configuration: {wrong}.")
    return model


def new_model(config: AOGPTConfig) -> Model:
    """With random weights."""
    return MDMEncoderForMaskedLM(config) if isinstance(config, MDMEncoderConfig) else AOGPTForAnyOrderLM(config)


def load_model(name_or_path: str, config: AOGPTConfig) -> Model:
    """
    A checkpoint with all its weights, in float32.

    Args:
        name_or_path (`str`): A folder or Hub repository.
        config: What the run asks for: the checkpoint's architecture with the vocabulary of the tokenizer.

    Raises:
        ValueError: If the tokenizer has other ids than the checkpoint was trained with, or weights are missing, damaged
            or too many.
    """
    its = read_config(name_or_path)
    for name in ("num_valid_tokens", "mask_token_id"):
        if getattr(config, name) != getattr(its, name):
            raise ValueError(
                f"The tokenizer has {name}={getattr(config, name)}, but the model of {name_or_path} "
                f"{getattr(its, name)}: give the tokenizer that it was trained with."
            )
    return load_whole(AutoModel, name_or_path, dtype=torch.float32)
