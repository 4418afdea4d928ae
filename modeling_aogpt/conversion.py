# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions that all converters share. They read files of other projects, check tensors, and fill models."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

Tensors = dict[str, torch.Tensor]

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ADAPTER = "adapter_config.json"  # in the folder of a LoRA adapter
FILE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # without a folder


@dataclass(frozen=True)
class ReleasedArchitecture:
    """Names and settings of an architecture of another project."""

    name: str
    # Maps names of modules or tensors to names in this package. `{layer}` in a name stands for every layer.
    names: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # those that differ from the defaults of the configuration


# -------------------------------------------------------------------------------------------------------------- files


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise a `ValueError` if the file is missing or contains something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}. Download the model again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object. Download the model again.")
    return content


def read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor in an index. Raise a `ValueError` for a path, which could leave the folder."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{path} is damaged: it has no `weight_map` with file names. Download the model again.")
    for name in files.values():
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            raise ValueError(
                f"`weight_map` in {path} must contain names of files in the same folder, but contains {name!r}. Do not "
                "use this model, or correct the name."
            )
    return files


def find_weights(folder: Path) -> list[str]:
    """Return [main file] of the model or adapter in a folder, or []. Raise a `ValueError` if there are several."""
    found = [name for name in (ADAPTER, SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME) if (folder / name).exists()]
    if SAFE_WEIGHTS_INDEX_NAME in found and SAFE_WEIGHTS_NAME in read_index(folder / SAFE_WEIGHTS_INDEX_NAME).values():
        found.remove(SAFE_WEIGHTS_INDEX_NAME)  # some programs write an index of a single file
    if len(found) > 1:
        raise ValueError(f"{folder} holds more than one model: {', '.join(found)}. Keep the files of one.")
    return found


def read_tensors(folder: Path) -> Tensors:
    """Return the tensors of model.safetensors, or of the files in its index (model.safetensors.index.json)."""
    is_divided = find_weights(folder) == [SAFE_WEIGHTS_INDEX_NAME]
    files = read_index(folder / SAFE_WEIGHTS_INDEX_NAME) if is_divided else {}
    tensors = {}
    for name in sorted({*files.values()}) or [SAFE_WEIGHTS_NAME]:
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder / name} is missing or damaged: {error}. Download the model again.") from error
    if missing := sorted(files.keys() - tensors.keys()):
        raise ValueError(f"{folder} lacks {len(missing)} tensors, such as {missing[0]}. Download the model again.")
    return tensors


# ------------------------------------------------------------------------------------------------------------ tensors


@dataclass(frozen=True)
class Blueprint:
    """Model on the meta device, with the names and shapes of the tensors that it needs.

    `names` maps each tensor of the source to its names in the model. A tensor that joins the projections of queries,
    keys and values has three names; every other tensor has one. `shapes` are the shapes in the source. Both have the
    order of parameters in the authors' code.
    """

    model: PreTrainedModel
    names: dict[str, list[str]]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def make(
        cls, make_model: Callable[[Any], PreTrainedModel], config: Any, architecture: ReleasedArchitecture | None = None
    ) -> "Blueprint":
        """Return the blueprint of `make_model(config)`. Tensors that `architecture` does not name keep their names."""
        renamed = {} if architecture is None else architecture.names
        try:
            with torch.device("meta"):
                model = make_model(config)
        except Exception as error:  # of any kind, if settings contradict each other
            reason = f"because no model can be made from its config.json. Correct this file. (Cause: {error!r:.300})"
            raise ValueError(f"A model of type {config.model_type!r} cannot be converted, {reason}") from error
        weights, names, modules = model.state_dict(), {}, []
        for is_block, items in groupby(renamed.items(), lambda item: "{layer}" in item[0]):
            items = [*items]
            for layer in map(str, range(config.num_hidden_layers if is_block else 1)):
                modules += [tuple(name.replace("{layer}", layer) for name in item) for item in items]
        for old, new in modules:
            parts = [new.replace("{q,k,v}", part) for part in "qkv"] if "{q,k,v}" in new else [new]
            for kind in ("", ".weight", ".bias"):
                if f"{parts[0]}{kind}" in weights:
                    names[f"{old}{kind}"] = [f"{part}{kind}" for part in parts]
        named = {name for parts in names.values() for name in parts}
        names |= {name: [name] for name in weights if name not in named}
        shapes = {
            old: (sum(weights[one].shape[:1].numel() for one in new), *weights[new[0]].shape[1:])
            for old, new in names.items()
        }
        return cls(model, names, shapes)

    @property
    def tied(self) -> tuple[str, str] | None:
        """Names in the source of the head and the token table, or None if they are not the same tensor."""
        olds = {new[0]: old for old, new in self.names.items()}
        return (olds[HEAD], olds[TABLE]) if self.model.config.tie_word_embeddings else None

    def check(self, tensors: Tensors, source: str, settings: str) -> None:
        """Raise a `ValueError` unless `tensors` have the right names, shapes and kinds, and their values are finite.

        A tied head that the source lacks is added to `tensors`. `source` and `settings` are parts of the message.
        """
        if self.tied and self.tied[1] in tensors:
            tensors.setdefault(self.tied[0], tensors[self.tied[1]])
        problems = [f"{name} is missing" for name in self.shapes if name not in tensors]
        for name, tensor in tensors.items():
            if name not in self.shapes:
                problems.append(f"{name} is unknown")
            elif not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                problems.append(f"{name} is not a tensor of floating-point numbers")
            elif tuple(tensor.shape) != self.shapes[name]:
                problems.append(f"{name} has shape {tuple(tensor.shape)} instead of {self.shapes[name]}")
        if problems:
            raise ValueError(f"The tensors of {source} do not fit {settings}: {_shorten(problems)}.")
        if wrong := [name for name, tensor in tensors.items() if not (tensor.is_meta or tensor.isfinite().all())]:
            raise ValueError(
                f"The tensors of {source} have NaN or infinite values in {_shorten(wrong)}. Download the model again, "
                "or use another checkpoint."
            )
        if self.tied and not tensors[self.tied[0]].is_meta and not torch.equal(*(tensors[name] for name in self.tied)):
            raise ValueError(
                f"The tensors {' and '.join(self.tied)} of {source} differ, but must be the same, because its weights "
                "are tied. Download the model again."
            )

    def rename(self, tensors: Tensors) -> Tensors:
        """Return the tensors by their names in the model. A tensor with several names is split into equal parts."""
        weights = {}
        for old, new in self.names.items():
            parts = [part.clone() for part in tensors[old].chunk(len(new))] if len(new) > 1 else [tensors[old]]
            weights |= zip(new, parts, strict=True)
        return weights

    def load(self, tensors: Tensors) -> PreTrainedModel:
        """Return the model with checked `tensors`, in evaluation mode. Tensors with one name are not copied."""
        self.model.load_state_dict(self.rename(tensors), assign=True)
        self.model.tie_weights()
        return self.model.eval()


def _shorten(items: list[str]) -> str:
    """Return the first eight items as text, and the number of others."""
    return "; ".join(items[:8]) + (f"; and {len(items) - 8} more" if len(items) > 8 else "")
