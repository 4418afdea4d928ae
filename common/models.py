# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Models in folders and on the Hub: how they are loaded, and what identifies their weights."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file, extract_commit_hash

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderForMaskedLM

Model = AOGPTForAnyOrderLM | MDMEncoderForMaskedLM


def read_any_config(name_or_path: str | Path, **options: Any) -> PreTrainedConfig:
    """Return the configuration of a model in a folder or on the Hub. Raises a `ValueError` if there is none."""
    try:
        return AutoConfig.from_pretrained(name_or_path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"There is no model {str(name_or_path)!r}, on the Hub or as a folder: {error}") from error


def read_config(name_or_path: str | Path, **options: Any) -> AOGPTConfig:
    """Return the configuration of a model of this package. Raises a `ValueError` for any other model."""
    config = read_any_config(name_or_path, **options)
    if not isinstance(config, AOGPTConfig):  # an encoder's is one too
        raise ValueError(
            f"{name_or_path} is a model of type {config.model_type!r}, not of this package. A GPT-2 is converted by "
            "training/convert_gpt2.py, released files by modeling_aogpt/convert_reference_checkpoint.py."
        )
    return config


def load_pretrained(model_class: Any, name_or_path: str | Path, **options: Any) -> PreTrainedModel:
    """
    Load a model with all its weights: none are initialized at random.

    Args:
        model_class: A class of models, or one such as `AutoModel`; `options` are those of its `from_pretrained`.
        name_or_path: A folder or Hub repository.

    Raises:
        ValueError: If weights are missing, damaged or of other shapes, or, for a model of this package, unused. (Other
            models may come with the weights of a head that is not loaded.)
    """
    try:
        model, report = model_class.from_pretrained(name_or_path, output_loading_info=True, **options)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The weights of {name_or_path} are missing or damaged: {error}") from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(f"The weights in {name_or_path} do not match the shapes in its config.json.") from error
    if not isinstance(model.config, AOGPTConfig):
        del report["unexpected_keys"]
    if wrong := {kind: sorted(map(str, keys)) for kind, keys in report.items() if keys}:
        raise ValueError(f"The weights of {name_or_path} are not those of its configuration: {wrong}.")
    return model


def load_model(name_or_path: str | Path, **options: Any) -> Model:
    """
    Load a decoder or encoder of this package in evaluation mode, with this package's code.

    Args:
        name_or_path: A folder or Hub repository.
        options: Of `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: If it is not a model of this package, or its weights are not complete.
    """
    read_config(name_or_path, trust_remote_code=False)
    return load_pretrained(AutoModel, name_or_path, trust_remote_code=False, **options).eval()


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Return the number of tokens that a language model takes, or None if its configuration does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


# --------------------------------------------------------------------------------------------- identity of the weights


def identity_of_weights(name: str) -> str | None:
    """
    Return what identifies the weights that a name stands for now: a commit on the Hub, or a digest of a folder.

    The digest is of the tensors, so it stays the same if they are saved in other shards.

    Raises:
        ValueError: If the files of a folder are damaged.
    """
    if not Path(name).is_dir():
        return hub_revision(name)
    try:
        digests = sorted(digest for file in Path(name).glob("*.safetensors") for digest in _digests_of_tensors(file))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The weights of {name} are missing or damaged: {error}") from error
    return hashlib.sha256("".join(digest for _, digest in digests).encode()).hexdigest()[:12]


def hub_revision(name: str) -> str | None:
    """Return the commit that a model's name on the Hub stands for now, or None for a folder or an unknown name."""
    try:
        return extract_commit_hash(cached_file(name, "config.json"), None)
    except OSError:
        return None


def _digests_of_tensors(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor in a file of weights, and a digest of its name, type, shape and values."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():
            tensor = tensors.get_tensor(name)
            digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy())
            yield name, digest.hexdigest()
