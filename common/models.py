# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Loading of models from folders and the Hub, and identifiers of their weights."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, extract_commit_hash

from common.files import atomic_folder, hash_file
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from modeling_aogpt.conversion import read_index

Model = AOGPTForAnyOrderLM | MDMEncoderForMaskedLM


def find_model(name_or_path: str | Path) -> str:
    """
    Return the model folder of a training run. If `name_or_path` is not the folder of a run, return it unchanged.

    Raise a `ValueError` if the run is not finished, or if `name_or_path` is a file.
    """
    folder = Path(name_or_path).expanduser()
    for path in (folder, folder / "model"):
        if (path / "config.json").exists():
            return str(path)
    if folder.is_file() or (folder / "tokenizer").is_dir():
        problem = "is a file" if folder.is_file() else "is a run that is not finished, so it has no model"
        raise ValueError(
            f"{folder} {problem}. To make a model from a checkpoint, run `python training/export_checkpoint.py "
            f"{folder} OUTPUT_DIR`."
        )
    return str(name_or_path)


def read_any_config(name_or_path: str | Path, **options: Any) -> PreTrainedConfig:
    """Return the configuration of a model. Raise a `ValueError` if there is none, or if it needs code of its own."""
    try:
        return AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **options)
    except OSError as error:
        raise ValueError(f"There is no model {str(name_or_path)!r}. Check the name. (Cause: {error})") from error
    except ValueError as error:
        raise ValueError(
            f"The configuration of {str(name_or_path)!r} cannot be used. Models with code of their own are not "
            f"supported. (Cause: {error})"
        ) from error


def read_config(name_or_path: str | Path) -> AOGPTConfig:
    """Return the configuration of a model of this package. Raise a `ValueError` for any other model."""
    config = read_any_config(name_or_path)
    if not isinstance(config, AOGPTConfig):  # also the base class of MDMEncoderConfig
        raise ValueError(
            f"{name_or_path} is a model of type {config.model_type!r}, not a model of this package. Convert a causal "
            "language model with training/conversion/causal_lm.py, or a released checkpoint with "
            "modeling_aogpt/convert_reference_checkpoint.py."
        )
    return config


def load_pretrained(model_class: Any, name_or_path: str | Path, **options: Any) -> PreTrainedModel:
    """
    Load a model without running code in its folder or repository, and check that its weights are complete.

    Args:
        model_class: Model class, or an Auto class such as `AutoModel`.
        name_or_path: Folder or Hub repository.
        options: Arguments of `from_pretrained`.

    Raises:
        ValueError: If weights are missing, are damaged or have wrong shapes; for a model of this package, also if
            weights are not used. (A model of another package may contain a head that is not loaded.)
    """
    for index in Path(name_or_path).glob("*.index.json"):
        read_index(index)  # Transformers would also read files outside the folder
    try:
        model, report = model_class.from_pretrained(
            name_or_path, output_loading_info=True, trust_remote_code=False, **options
        )
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"The weights of {name_or_path} are missing or damaged. Copy or download the model again. (Cause: {error})"
        ) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(
            f"The weights in {name_or_path} do not match the shapes in its config.json. Copy the model again."
        ) from error
    if not isinstance(model.config, AOGPTConfig):
        del report["unexpected_keys"]
    # Long lists are shortened: the message has the number of keys of each kind, and the first three.
    if wrong := {f"{len(keys)} {kind}": sorted(map(str, keys))[:3] for kind, keys in report.items() if keys}:
        raise ValueError(
            f"The weights of {name_or_path} do not match its configuration: {wrong}. Copy or download the model again."
        )
    return model


def load_model(name_or_path: str | Path, **options: Any) -> Model:
    """Load a decoder or encoder in evaluation mode. Code in the model folder is ignored; this package is used."""
    read_config(name_or_path)
    return load_pretrained(AutoModel, name_or_path, **options).eval()


def save_model(model: Model, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model, its tokenizer and its code to a folder atomically. `AutoModel.from_pretrained` can load it."""
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(temporary)


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Return the maximum sequence length of a language model, or None if the configuration does not specify it."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def identity_of_weights(name: str) -> str | None:
    """
    Return an identifier of a model's weights: the commit on the Hub or, for a folder, a hash of the tensors.

    The hash of safetensors files does not depend on how the tensors are divided into files. The result is None for an
    unknown name, and for a folder without weights.
    """
    if not Path(name).is_dir():
        try:
            return extract_commit_hash(cached_file(name, "config.json"), None)
        except OSError:
            return None
    try:
        digests = sorted(digest for file in Path(name).glob("*.safetensors") for digest in _digests_of_tensors(file))
        digests = digests or sorted((file.name, hash_file(file)) for file in Path(name).glob("*.bin"))
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"The weights of {name} are missing or damaged. Copy or download the model again. (Cause: {error})"
        ) from error
    return hashlib.sha256("".join(digest for _, digest in digests).encode()).hexdigest()[:12] if digests else None


def _digests_of_tensors(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor in a file, and a hash of its name, dtype, shape and values."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():
            tensor = tensors.get_tensor(name)
            digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy())
            yield name, digest.hexdigest()
