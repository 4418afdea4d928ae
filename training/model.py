# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Model of a run: its initial weights, and its distribution over the processes of the run."""

import logging
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, DynamoBackend, set_seed
from torch.optim import Optimizer
from transformers import AutoModel, PreTrainedTokenizerBase

from common.data_arguments import DataArguments
from common.models import check_own_tokenizer
from common.tokenizers import vocabulary_arguments
from modeling_aogpt import AOGPTConfig
from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.loading import Model, load_pretrained, read_config
from training.activation_checkpointing import checkpoint_activations
from training.architecture import Architecture, build_config
from training.arguments import LEFT_TO_RIGHT_ORDERS, TrainingArguments
from training.lora import add_lora, frozen_dtype, quantization_options
from training.objectives import Objective, compile_head_loss
from training.optimization import parameter_groups
from training.sharding import set_up_sharding

logger = logging.getLogger("pretrain")


def create_model(
    config: AOGPTConfig, training: TrainingArguments, accelerator: Accelerator, load_weights: bool = True
) -> Model:
    """Return the model of a run in training mode. With FSDP2, it is on the CPU or, except in process 0, without data.

    Without `load_weights`, the weights are random, because the weights of a checkpoint will replace them.
    """
    is_fsdp = accelerator.distributed_type == DistributedType.FSDP
    if is_fsdp and (training.lora_rank or training.needs_source):
        name = "lora_rank" if training.lora_rank else "distillation_weight` or `reward"
        raise ValueError(f"`{name}` cannot be combined with FSDP2. Train with DDP, or on one GPU.")
    set_seed(training.seed)
    # When `Accelerator.prepare` shards the weights, the other processes get those of process 0.
    loads = not is_fsdp or accelerator.is_main_process or not accelerator.state.fsdp_plugin.cpu_ram_efficient_loading
    with nullcontext() if loads else torch.device("meta"):
        if training.lora_rank:
            dtype = frozen_dtype(read_config(training.init_from))
            model = make_model(config, training.init_from, dtype=dtype, **quantization_options(training, dtype))
            add_lora(model, training)
        else:
            model = make_model(config, training.init_from, load_weights)
    model.train()  # `from_pretrained` sets eval mode
    settings = model.generation_config
    if training.orders in LEFT_TO_RIGHT_ORDERS and training.stride is None:
        settings.order = "left_to_right"  # the default of `generate`
    elif settings.order == "left_to_right":
        settings.order = None
    if training.max_gap_length is not None:
        model.config.max_gap_length = training.max_gap_length
    elif longest := model.config.max_gap_length:
        logger.warning(
            "The model keeps `max_gap_length` (%d), but training without it may unlearn ends of gaps.", longest
        )
    if not is_fsdp:  # FSDP2 moves one layer at a time
        model.to(accelerator.device)
    checkpoint_activations(model, training.activation_checkpointing)
    return model


def distribute(accelerator: Accelerator, objective: Objective, optimizer: Optimizer) -> tuple[Any, Any]:
    """Return the objective and the optimizer, wrapped for several processes, mixed precision and torch.compile.

    They share the weights of `objective.model`. FSDP2 shards these weights in place.
    """
    set_up_sharding(accelerator)
    if (plugin := accelerator.state.dynamo_plugin).backend != DynamoBackend.NO:
        compile_head_loss(**plugin.to_kwargs())
    wrapped = accelerator.prepare(objective, optimizer)
    # Accelerate finds the parameters of an optimizer by their addresses. Parameters on the meta device have no address,
    # so the parameters are set again here.
    for group, parameters in zip(optimizer.param_groups, parameter_groups(objective.model), strict=True):
        group["params"] = parameters
    return wrapped


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase, model: Architecture, data: DataArguments, training: TrainingArguments
) -> None:
    """Raise a `ValueError` if the model cannot have the given tokenizer, or if `init_from` has another tokenizer."""
    if data.vocab_size not in (DataArguments.vocab_size, len(tokenizer)):
        logger.warning("`vocab_size` has no effect, because the tokenizer is taken from %s. Remove it.", data.tokenizer)
    config, init_from = build_config(model, **vocabulary_arguments(tokenizer)), training.init_from
    if init_from is None:
        return
    check_own_tokenizer(init_from, tokenizer, data.tokenizer)
    initial_config = read_config(init_from)
    for name in ("num_valid_tokens", "mask_token_id", "eos_token_id"):
        given, expected = getattr(config, name), getattr(initial_config, name)
        if expected is not None and given not in as_list(expected):
            raise ValueError(
                f"The tokenizer has {name}={given}, but the model of {init_from} has {name}={expected}. Set "
                "`tokenizer` to that of its training. For another end of text, edit `eos_token_id` in its config files."
            )


def make_model(config: AOGPTConfig, init_from: str | None, load_weights: bool = True, **options: Any) -> Model:
    """Return a model with random weights, or the model `init_from`, loaded with `options`, by default in float32.

    Without `load_weights`, or on the default device `meta`, only the configuration is taken from `init_from`.
    """
    if init_from is None:
        return AutoModel.from_config(config)
    if not load_weights or torch.get_default_device().type == "meta":
        return AutoModel.from_config(read_config(init_from), dtype=torch.float32)
    return load_pretrained(AutoModel, init_from, **{"dtype": torch.float32} | options)
