# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Folders of models, and identifiers of their weights."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file, extract_commit_hash, has_file

from common.files import atomic_folder, hash_file
from modeling_aogpt.conversion import ADAPTER
from modeling_aogpt.loading import Model, find_base, load_model, restore_generation_config
from modeling_aogpt.tokenization import load_tokenizer


def load_merged(name_or_path: str | Path, **options: Any) -> Model:
    """Load a model as `load_model` does, and add a LoRA adapter, if it is one, to the weights of its base model."""
    if (base := find_base(name_or_path)) is None:
        return load_model(name_or_path, **options)
    from peft import PeftModel  # needed only for adapters

    try:
        tuned = PeftModel.from_pretrained(load_model(base, **options), name_or_path)
    except RuntimeError as error:
        advice = "Use the base model, with the vocabulary, of the adapter's training."
        raise ValueError(f"{name_or_path} does not fit its base model {base}. {advice} (Cause: {error})") from error
    if getattr(tuned.peft_config["default"], "layer_replication", None):  # one tensor would get the changes of several
        raise ValueError(f"{name_or_path} replicates layers, and cannot be merged. Train without `layer_replication`.")
    inner = tuned.get_base_model()
    head = getattr(inner.lm_head, "base_layer", inner.lm_head)
    is_adapted = head is not inner.lm_head or hasattr(inner.get_input_embeddings(), "base_layer")
    if inner.config.tie_word_embeddings and is_adapted:  # a shared tensor would get the changes of both
        head.weight, inner.config.tie_word_embeddings = nn.Parameter(head.weight.detach().clone()), False
    model = tuned.merge_and_unload().eval()
    restore_generation_config(model, name_or_path)
    return model


def save_model(model: Model, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model, its tokenizer and its code atomically to a folder that `AutoModel.from_pretrained` can load."""
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary, save_embedding_layers=False)  # adapters leave these to the base model
        if (temporary / ADAPTER).exists():  # PEFT does not save the generation settings
            model.generation_config.save_pretrained(temporary)
            (temporary / "README.md").unlink()  # an empty template with a local path
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(temporary)


def check_own_tokenizer(model: str, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise a `ValueError` if a model's tokenizer has other tokens or end-of-text than `tokenizer` (of `name`)."""
    own = load_tokenizer(model) if model != name and has_file(model, "tokenizer_config.json") else tokenizer
    if own.eos_token != tokenizer.eos_token or own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"`tokenizer` ({name}) differs from the tokenizer of {model}. Remove `tokenizer`.")


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Return the maximum sequence length of a language model, or None if the configuration does not specify it."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def identity_of_weights(name: str) -> str | None:
    """Return an identifier of a model's weights: the commit on the Hub or, for a folder, a hash of the tensors.

    The hash of safetensors files does not depend on how the tensors are divided into files. That of a LoRA adapter also
    depends on its settings and base model. The result is None for an unknown name, and for a folder without weights.
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
        raise ValueError(f"The weights of {name} are missing or damaged. Copy them again. (Cause: {error})") from error
    if base := find_base(name):
        digests.append((ADAPTER, f"{identity_of_weights(base)} {hash_file(Path(name) / ADAPTER)}"))
    return hashlib.sha256("".join(digest for _, digest in digests).encode()).hexdigest()[:12] if digests else None


def identity_of_configs(name: str) -> list[str]:
    """Return hashes of the configurations of a model folder and its base model. For a name on the Hub, return []."""
    own = [f"{file.name} {hash_file(file)[:12]}" for file in sorted(Path(name).glob("*config.json"))]
    return own + (identity_of_configs(base) if (base := find_base(name)) else [])


def _digests_of_tensors(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor in a file, and a hash of its name, dtype, shape and values."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():
            tensor = tensors.get_tensor(name)
            digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy())
            yield name, digest.hexdigest()
