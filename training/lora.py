# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""LoRA (arXiv 2106.09685) by PEFT: small trainable matrices beside the frozen projections of an initial model.

PEFT adds the matrices to the modules of the model in place, so the class of the model and its methods stay the same.
"""

import json
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel, TorchAoConfig

from common.models import identity_of_weights
from modeling_aogpt.loading import read_config
from training.arguments import TrainingArguments

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Modules that are trained whole: the target injection, which is new in a converted model.
WHOLE = ("target_embeddings", "sigma_embedding", "modulation")
# Settings of a configuration that belong to the run, to its libraries, or to how the weights are loaded.
OF_RUN = {"dtype", "max_gap_length", "transformers_version"}
LIBRARIES = {"int8": "torchao", "nf4": "bitsandbytes"}


def add_lora(model: PreTrainedModel, training: TrainingArguments) -> PeftModel:
    """Freeze a model, and add the trainable matrices to it in place. Return the object of PEFT that saves them."""
    paths = [name.split(".") for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    # The loss uses the weight of the head without its module, so an adapter of the head would not be trained.
    names = {path[-1] for path in paths if not {"lm_head", *WHOLE}.intersection(path)}
    targets = training.lora_targets or [name for name in TARGETS if name in names]
    if wrong := sorted(set(targets) - names):
        raise ValueError(f"`lora_targets` must be of {', '.join(sorted(names))}, but not {', '.join(wrong)}.")
    for module in model.modules():  # else, bitsandbytes loses gradients after an evaluation on a CPU
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    alpha = training.lora_alpha or 2 * training.lora_rank
    whole = sorted(set(WHOLE).intersection(chain(*paths))) or None
    config = LoraConfig(r=training.lora_rank, lora_alpha=alpha, target_modules=targets, modules_to_save=whole)
    tuned = get_peft_model(model, config)
    base = Path(training.init_from).absolute()
    config.base_model_name_or_path = str(base) if base.exists() else training.init_from
    return tuned


def frozen_dtype(config: PreTrainedConfig) -> torch.dtype:
    """Return the dtype of the frozen weights: float32 if modules are trained whole, else the initial model's dtype."""
    return torch.float32 if config.target_injection != "none" or config.dtype is None else config.dtype


def quantization_options(training: TrainingArguments, dtype: torch.dtype) -> dict[str, Any]:
    """Return options of `from_pretrained` that quantize the frozen projections. Other weights have `dtype`."""
    if training.quantization is None:
        return {}
    if find_spec(library := LIBRARIES[training.quantization]) is None:
        raise ValueError(
            f"`quantization={training.quantization}` needs {library}, which is not installed. Run `pip install "
            f"{library}`, or remove `quantization`."
        )
    others = ["lm_head", *(f".*{name}" for name in WHOLE)]  # regular expressions of modules that keep their dtype
    if library == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig

        return {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=others)}
    settings = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=others, **settings)}


def saved_bytes(model: PreTrainedModel, training: TrainingArguments) -> int:
    """Return by how much quantization makes a model smaller, without the largest of its matrices, while it is used."""
    if (bits := {"int8": 8, "nf4": 4.127}.get(training.quantization)) is None:  # nf4 includes its scales
        return 0
    linear = [(name, module.weight) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    frozen = [weight for name, weight in linear if name != "lm_head" and not weight.requires_grad]
    return int(sum(weight.nbytes - weight.numel() * bits / 8 for weight in frozen)) - max(w.nbytes for w in frozen)


def check_base(training: TrainingArguments, checkpoint: dict[str, Any]) -> None:
    """Raise a `ValueError` if the initial model's configuration or, if the run still needs them, weights changed."""
    saved, config = checkpoint["config"], json.loads(json.dumps(read_config(training.init_from).to_dict()))
    changed = [name for name in config if name not in OF_RUN and config[name] != saved.get(name, config[name])]
    if training.lora_rank or training.needs_source:  # a checkpoint contains no weights of the initial model
        changed += ["weights"] * (identity_of_weights(training.init_from) != checkpoint["initial_weights"])
    if changed:
        raise ValueError(
            f"The model of `init_from` ({training.init_from}) has changed since the start of the run: "
            f"{', '.join(changed)}. Restore it, because the run still needs it."
        )
