# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Loading of models from folders and the Hub. Code in these places is not run, and weights are checked."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from .configuration_aogpt import AOGPTConfig
from .conversion import ADAPTER, find_weights, read_index, read_json
from .modeling_aogpt import AOGPTForAnyOrderLM
from .modeling_mdm_encoder import MDMEncoderForMaskedLM

Model = AOGPTForAnyOrderLM | MDMEncoderForMaskedLM


def find_model(name_or_path: str | Path) -> str:
    """Return the model folder of a training run. If `name_or_path` is not the folder of a run, return it unchanged.

    Raise a `ValueError` if the run is not finished, or if `name_or_path` is a file.
    """
    folder = Path(name_or_path).expanduser()
    for path in (folder, folder / "model"):
        if (path / "config.json").exists() or (path / ADAPTER).exists():
            return str(path)
    if folder.is_file() or (folder / "tokenizer").is_dir():
        problem = "is a file" if folder.is_file() else "is a run that is not finished, so it has no model"
        raise ValueError(
            f"{folder} {problem}. To make a model from a checkpoint, run `python training/export_checkpoint.py "
            f"{folder} OUTPUT_DIR`."
        )
    return str(name_or_path)


def find_base(name_or_path: str | Path) -> str | None:
    """Return the base model of an adapter in a folder, or None. Raise a `ValueError` if the folder cannot be used."""
    path = Path(name_or_path)
    adapter = read_json(path / ADAPTER) if ADAPTER in find_weights(path) else {}
    if "num_virtual_tokens" in adapter:  # of prompt tuning and prefix tuning
        raise ValueError(f"{path} has virtual tokens, which are not supported. Train another adapter, such as LoRA.")
    if (init := str(adapter.get("init_lora_weights"))).startswith("pissa_niter"):
        advice = "Save it again with PEFT's `path_initial_model_for_weight_conversion`."
        raise ValueError(f"{path} needs the base as init_lora_weights={init} changed it, which is not saved. {advice}")
    base, revision = adapter.get("base_model_name_or_path"), adapter.get("revision")
    if base and revision not in (None, "main") and not Path(base).is_dir():  # would load the newest revision
        advice = f"Download it, and set `base_model_name_or_path` in {ADAPTER} to its folder."
        raise ValueError(f"{path} needs revision {revision} of its base model {base}. {advice}")
    return base


def read_any_config(name_or_path: str | Path, **options: Any) -> PreTrainedConfig:
    """Return the configuration of a model or, for a LoRA adapter, of its base model.

    Raise a `ValueError` if there is none, or if it needs code of its own.
    """
    name = find_base(name_or_path) or name_or_path
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    except OSError as error:
        raise ValueError(f"There is no model {str(name_or_path)!r}. Check the name. (Cause: {error})") from error
    except Exception as error:  # a damaged file can raise errors of any kind
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
            "language model with training/conversion/causal_lm.py, or a released checkpoint with `aogpt convert`."
        )
    return config


def load_pretrained(model_class: Any, name_or_path: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model without running code in its folder or repository, and check that its weights are complete.

    `model_class` can be an Auto class such as `AutoModel`. `options` are arguments of `from_pretrained`. Raise a
    `ValueError` if weights are missing, are damaged or have wrong shapes; for a model of this package, also if weights
    are not used. Models of other packages may contain a head that is not loaded.
    """
    for index in Path(name_or_path).glob("*.index.json"):
        read_index(index)  # Transformers would also read files outside the folder
    if (path := Path(name_or_path, GENERATION_CONFIG_NAME)).is_file():
        read_json(path)  # Transformers would ignore a damaged file
    options |= {"output_loading_info": True, "trust_remote_code": False}
    try:
        model, report = model_class.from_pretrained(name_or_path, **options)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"The weights of {name_or_path} are missing or damaged. Copy or download the model again. (Cause: {error})"
        ) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(
            f"The weights in {name_or_path} do not match the shapes in its config.json or, for an adapter, in its base "
            "model. Copy the model again, or use the base model, with the vocabulary, of the adapter's training."
        ) from error
    restore_generation_config(model, name_or_path)
    if not isinstance(model.config, AOGPTConfig):
        del report["unexpected_keys"]
    if wrong := {f"{len(keys)} {kind}": sorted(map(str, keys))[:3] for kind, keys in report.items() if keys}:
        raise ValueError(
            f"The weights of {name_or_path} do not match its configuration: {wrong}. Copy or download the model again. "
            "If it is an adapter, merge it into its base model first, as docs/finetuning.md shows."
        )
    return model


def find_device(name: str) -> torch.device:
    """Return a device of this machine. Raise a `ValueError` if there is no such device."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises an `AssertionError`
        raise ValueError(
            f"`device` ({name}) cannot be used. Set it to cpu, or to an accelerator such as cuda. (Cause: "
            f"{str(error).splitlines()[0]})"
        ) from error


def load_model(name_or_path: str | Path, **options: Any) -> Model:
    """Load a decoder or encoder in evaluation mode. Code in the model folder is not used."""
    read_config(name_or_path)
    return load_pretrained(AutoModel, name_or_path, **options).eval()


def restore_generation_config(model: PreTrainedModel, name_or_path: str | Path) -> None:
    """Replace the generation settings of a base model by the settings that are saved beside an adapter."""
    if find_base(name_or_path) is not None and (Path(name_or_path) / GENERATION_CONFIG_NAME).exists():
        model.generation_config = type(model.generation_config).from_pretrained(name_or_path)
