# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command that estimates the time, memory and disk space of a run, without a GPU and without the training data.

    python training/dry_run.py CONFIG.yaml [--key value ...] [--launch training/accelerate/ddp.yaml] [--gpu NAME]

CONFIG.yaml and `--key value` have the same meaning as for training/pretrain.py. The command fails if the memory or the
disk is too small. It loads the tokenizer of the run, but not the corpus.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModel

from common.commands import Options, Parser, one_line_errors, option
from common.data_arguments import DataArguments
from common.files import free_space, read_yaml
from common.hardware import GPUS
from common.reports import markdown_table
from common.tokenizers import vocabulary_arguments
from modeling_aogpt import AOGPTConfig
from modeling_aogpt.loading import Model, read_config
from modeling_aogpt.modeling_aogpt import LOGITS_PER_CHUNK
from modeling_aogpt.tokenization import load_tokenizer
from training.architecture import Architecture, build_config
from training.arguments import LEFT_TO_RIGHT_ORDERS, TrainingArguments, accumulation_steps
from training.command_line import parse_arguments
from training.lora import add_lora, frozen_dtype, saved_bytes
from training.memory import count_pass
from training.optimization import first_decay_step, trainable_weights
from training.tracking import flops_per_token

DEFAULT_GPU = "NVIDIA H100 80GB HBM3"
CHECKPOINT_BYTES = 16  # per parameter, in float32: weight, moving average and AdamW's two moments


@dataclass
class Arguments(Options):
    """Options of training/dry_run.py."""

    launch: Path = option(Path(__file__).parent / "accelerate" / "ddp.yaml", "Launch file of Accelerate.")
    num_processes: int | None = option(None, "Number of GPUs; defaults to that in `launch`.", least=1)
    gpu: str | None = option(
        None,
        f"Name of the GPU. Defaults to the GPU of this machine, or else to {DEFAULT_GPU}. Known GPUs: "
        f"{', '.join(GPUS)}.",
    )
    gpu_memory: float | None = option(None, "Memory of each GPU, in GB. Defaults to the memory of `gpu`.", least=0)
    mfu: float = option(0.4, "Assumed fraction of the GPU's peak FLOPS in 16-bit precision.", least=1e-3, below=1)


@one_line_errors()
def main() -> None:
    """Run the command."""
    options, run = Parser((Arguments,)).parse_args_into_dataclasses(sys.argv[1:], return_remaining_strings=True)
    model, data, training = parse_arguments(run)
    estimate, problems = estimate_run(read_model_config(model, data, training), data, training, options)
    print(markdown_table(["", ""], estimate.items()))
    if problems:
        raise ValueError(f"The run does not fit. {' '.join(problems)}")


def read_model_config(model: Architecture, data: DataArguments, training: TrainingArguments) -> AOGPTConfig:
    """Return the configuration of the model of a run."""
    if training.init_from is not None:
        return read_config(training.init_from)
    if data.tokenizer is not None:
        return build_config(model, **vocabulary_arguments(load_tokenizer(data.tokenizer)))
    return build_config(model, vocab_size=data.vocab_size, num_valid_tokens=data.vocab_size)


def estimate_run(
    config: AOGPTConfig, data: DataArguments, training: TrainingArguments, options: Arguments
) -> tuple[dict[str, str], list[str]]:
    """Return the estimated quantities by name, and a sentence for each resource that is too small: memory, disk."""
    launch = read_launch(options)
    num_processes, is_cpu = launch["num_processes"], launch["use_cpu"]
    name = options.gpu or (torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_GPU)
    if name not in GPUS:
        raise ValueError(f"`gpu` must be one of {', '.join(GPUS)}, but is {name!r}.")
    gpu = GPUS[name]
    available = psutil.virtual_memory().total / 1e9 if is_cpu else gpu.memory
    available = available if options.gpu_memory is None else options.gpu_memory
    with torch.device("meta"):
        model = AutoModel.from_config(config, dtype=frozen_dtype(config) if training.lora_rank else torch.float32)
    num_parameters = model.num_parameters()
    if training.lora_rank:
        add_lora(model, training)
    num_trained = sum(weight.numel() for weight in trainable_weights(model).values())
    passes = accumulation_steps(training, num_processes)
    batch_tokens = training.batch_size * data.sequence_length
    # With distillation, the initial model also predicts the left-to-right sequences (2 operations for each weight).
    fractions = training.left_to_right_fraction, training.final_left_to_right_fraction or 0.0
    share = max(*fractions, training.orders in LEFT_TO_RIGHT_ORDERS) if training.distillation_weight else 0.0
    is_frozen = training.lora_rank > 0
    step_flops = batch_tokens * flops_per_token(config, data.sequence_length, is_frozen) * (1 + share / (3 - is_frozen))
    seconds = step_flops / (num_processes * gpu.peak_flops * options.mfu)
    hours = training.max_steps * seconds / 3600
    shape = (training.batch_size // passes // num_processes, data.sequence_length)
    memory = device_memory(model, shape, passes, training, launch)
    checkpoint, final_model = num_trained * CHECKPOINT_BYTES, num_trained * 4
    milestones = (first_decay_step(training) is not None) + (training.keep_best is not None)
    kept = training.save_total_limit + 1 + milestones  # an old checkpoint is removed after the new one is written
    sizes, free = f"{checkpoint / 1e9:,.1f} GB, model of {final_model / 1e9:,.1f} GB", free_space(training.output_dir)
    speed = {
        "speed": f"{3600 / seconds:,.0f} steps per hour at {options.mfu:.0%} MFU",
        "time": (f"{hours:,.1f} hours" if hours < 24 else f"{hours / 24:,.1f} days") + " without evaluations",
    }
    most = "at most " if data.packing == "documents" else ""  # examples are not padded to `sequence_length`
    values = {
        "parameters": f"{num_parameters:,}" + (f", LoRA trains {num_trained:,}" if training.lora_rank else ""),
        "tokens": f"{most}{training.max_steps * batch_tokens:,} ({batch_tokens:,} per step)",
        "FLOPs": f"{training.max_steps * step_flops:.2e}",
        "machine": f"{num_processes} x {'CPU' if is_cpu else name}, {passes} pass{'es' if passes > 1 else ''} per step",
        **({} if is_cpu else speed),
        f"memory per {'process' if is_cpu else 'GPU'}": f"{memory / 1e9:,.2f} of {available:.4g} GB",
        "disk": f"{kept} checkpoints of {sizes}; {free / 1e9:,.0f} GB are free",
    }
    other = "set `quantization`" if training.lora_rank else "shard with `--launch training/accelerate/fsdp2.yaml`"
    too_small = {
        "Memory: decrease `per_device_batch_size`, set `activation_checkpointing` to selective or full, or "
        f"{other}.": memory > available * 1e9,
        "Disk: free some space, or decrease `save_total_limit`.": kept * checkpoint + final_model > free,
    }
    return values, [advice for advice, is_true in too_small.items() if is_true]


def read_launch(options: Arguments) -> dict[str, Any]:
    """Return the settings of `launch`, with the defaults of Accelerate and the number of shards."""
    defaults = {"distributed_type": "NO", "num_processes": 1, "mixed_precision": "no", "num_shards": 1}
    launch = {**defaults, "use_cpu": False, **read_yaml(options.launch)}
    num_processes = launch["num_processes"] = options.num_processes or launch["num_processes"]
    if launch["distributed_type"] == "FSDP":
        sizes = launch.get("parallelism_config") or {"parallelism_config_dp_shard_size": num_processes}
        launch["num_shards"] = sizes.get("parallelism_config_dp_shard_size", 1)
    if num_processes % (num_shards := launch["num_shards"]):
        raise ValueError(
            f"`num_processes` must be a multiple of {num_shards}, the number of shards "
            f"(parallelism_config_dp_shard_size in {options.launch}), but is {num_processes}. Change one of them."
        )
    return launch


def device_memory(
    model: Model, shape: tuple[int, int], passes: int, training: TrainingArguments, launch: dict[str, Any]
) -> float:
    """Return the estimated peak memory of a device in bytes.

    The estimate ignores torch.compile, which often lowers the peak, and fragmentation, which raises it. On a CPU, it
    does not include the libraries.

    Each of the `passes` of a step gets input ids of `shape` (batch, n). In evaluations with sharded weights, each GPU
    has all weights in the precision of training. With LoRA, frozen weights have no gradients and no optimizer state.
    """
    config, value_bytes = model.config, 4 if (training.mixed_precision or launch["mixed_precision"]) == "no" else 2
    num_trained = sum(weight.numel() for weight in trainable_weights(model).values())
    weights = sum(weight.nbytes for weight in model.parameters()) - saved_bytes(model, training)
    if training.distillation_weight and not training.lora_rank:
        weights += 4 * num_trained  # the copy of the initial model
    layer_size = sum(weight.numel() for weight in model.model.layers[0].parameters())
    kept, peak = count_pass(model, training, shape, value_bytes == 2, has_gradients=passes > 1)
    largest = 0 if launch["use_cpu"] else LOGITS_PER_CHUNK["accelerator"]  # those of a CPU were counted
    logits = min(shape[0] * shape[1] * config.vocab_size, largest) * 8
    if launch["distributed_type"] == "FSDP":
        # The embeddings, the head and two layers at a time are gathered, and their gradients are reduced in float32.
        gathered = num_trained - max(config.num_hidden_layers - 2, 0) * layer_size
        copies = config.num_hidden_layers * layer_size * 2 if value_bytes == 2 else 0  # in 16 bits; none with sharding
        used = kept - copies + logits + gathered * (value_bytes + 4)
        return num_trained * (CHECKPOINT_BYTES + 4) / launch["num_shards"] + max(used, num_trained * value_bytes)
    buckets = 4 * num_trained if launch["num_processes"] > 1 else 0  # DDP's gradient buckets
    return weights + num_trained * (CHECKPOINT_BYTES - 4) + buckets + max(peak, kept + logits)


if __name__ == "__main__":
    main()
