# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Arguments of the training of a run, which are keys of its YAML file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common.commands import Options, option
from modeling_aogpt.data_collator import TrainingOrder

# Values of `orders` after which a model generates from left to right.
LEFT_TO_RIGHT_ORDERS = ("left_to_right", "gaps_last")


@dataclass
class TrainingArguments(Options):
    """Settings of the training. A step is one update of the weights. A batch consists of the sequences of one step."""

    output_dir: Path | None = option(None, "Folder of the run; defaults to runs/NAME for a YAML file NAME.yaml.")
    prepare_only: bool = option(False, "Read, tokenize and cache the corpus, then stop. This needs no GPU.")
    seed: int = option(0, "Seed of initial weights, data order and token orders.", least=0, below=2**32)
    max_steps: int = option(1000, "Number of training steps.", least=1)
    batch_size: int = option(128, "Number of sequences per step, over all processes.", least=1)
    per_device_batch_size: int | None = option(
        None,
        "Number of sequences per forward pass and process. If a batch takes several passes, gradients are accumulated. "
        "By default, each process computes its part of the batch in one pass.",
        least=1,
    )
    init_from: str | None = option(
        None,
        "Initial model: its folder, the folder of its run, or its Hub name. The run has the architecture of this model "
        "and, by default, its tokenizer and its longest sequence.",
    )
    lora_rank: int = option(
        0,
        "Rank of LoRA, which trains small matrices instead of the weights of `init_from`; 0 trains all weights.",
        needs="init_from",
        least=0,
    )
    lora_alpha: float | None = option(
        None, "Scale of LoRA times its rank; defaults to twice the rank.", needs="lora_rank", above=0
    )
    lora_targets: list[str] = option(
        [], "Modules to which LoRA is added; defaults to the projections of attention and MLPs.", needs="lora_rank"
    )
    quantization: Literal["int8", "nf4"] | None = option(
        None,
        "Precision of the frozen projections with LoRA: int8 (needs torchao) or nf4 (4 bits; needs bitsandbytes).",
        needs="lora_rank",
    )
    distillation_weight: float | None = option(
        None,
        "Weight of the divergence from the left-to-right predictions of init_from, which is added to the loss of "
        "left-to-right sequences. Without LoRA, it needs a copy of init_from in memory.",
        above=0,
        below=math.inf,
    )
    objective: Literal["any_order", "masked_diffusion", "score_entropy"] = option(
        "any_order", "Training loss. A decoder must use any_order; score_entropy requires target_injection=sigma."
    )
    orders: TrainingOrder = option(
        "random",
        "Training orders. random: an order drawn for each sequence. left_to_right: left to right. shared: one random "
        "order for all sequences. context_first: first a random subset of the positions (the context) from left to "
        "right and without loss, then the other positions in random order. gaps_last: first all positions outside "
        "random gaps, then those in the gaps, both from left to right. In examples for fine-tuning, the context is "
        "given, and the answers are the gaps.",
    )
    block_length: int | None = option(None, "Predict contiguous blocks of this length from left to right.", least=1)
    stride: int | None = option(
        None, "Predict strided blocks: positions 0, stride, 2 stride, ..., then 1, stride + 1, ...", least=1
    )
    min_context: int | None = option(
        None,
        "Smallest number of context positions with orders=context_first; defaults to 0. Has no effect on documents "
        "with context_marks.",
        least=0,
    )
    max_context: int | None = option(
        None,
        "Largest number of context positions with orders=context_first; defaults to all but one. Has no effect on "
        "documents with context_marks.",
        least=1,
    )
    max_gap_length: int | None = option(
        None,
        "Train to predict where gaps end (with orders=gaps_last): largest number of slots to add to each gap. The "
        "first one holds end-of-text. `infill` then predicts lengths of up to this number of tokens.",
        least=1,
    )
    left_to_right_fraction: float | None = option(
        None,
        "Fraction of sequences that are trained left to right, whatever `orders` is. Defaults to 0.1 for a decoder "
        "with random orders and without blocks, and to 0 otherwise.",
    )
    final_left_to_right_fraction: float | None = option(
        None, "If set, left_to_right_fraction changes linearly to this value."
    )
    left_to_right_steps: int | None = option(
        None,
        "Step at which the fraction reaches final_left_to_right_fraction and stays. Defaults to 30 % of max_steps.",
        least=1,
    )
    learning_rate: float = option(6e-4, "Peak learning rate.", above=0, below=math.inf)
    final_learning_rate: float | None = option(None, "Rate after all steps; defaults to a tenth of the peak.", least=0)
    learning_rate_schedule: Literal["cosine", "warmup_stable_decay"] = option(
        "cosine",
        "Learning rate after the warm-up. cosine: half a cosine. warmup_stable_decay: the peak until a linear decay in "
        "the last decay_steps steps; such a run can be extended later with a larger max_steps.",
    )
    decay_steps: int | None = option(
        None,
        "Number of steps of the decay, with warmup_stable_decay; defaults to a tenth of max_steps.",
        needs="learning_rate_schedule=warmup_stable_decay",
        least=1,
    )
    warmup_steps: int = option(100, "Number of steps of linear warm-up.", least=0)
    weight_decay: float = option(0.05, "Weight decay of tensors of two or more dimensions.", least=0, below=math.inf)
    adam_beta1: float = option(0.9, "Decay of AdamW's first moment.", least=0, below=1)
    adam_beta2: float = option(0.95, "Decay of AdamW's second moment.", least=0, below=1)
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", least=0, below=math.inf)
    max_grad_norm: float = option(1.0, "Largest norm of the gradient. Larger gradients are scaled down.", above=0)
    ema_decay: float = option(0.9999, "Decay of the moving average of the weights.", least=0, below=1)
    mixed_precision: Literal["no", "bf16", "fp16"] | None = option(
        None, "Precision of training passes. Defaults to the setting of `accelerate launch`, or else to no (float32)."
    )
    dynamo_backend: Literal["no", "eager", "aot_eager", "inductor"] | None = option(
        None, "Backend of torch.compile. Defaults to the setting of `accelerate launch`, or else to no (eager mode)."
    )
    activation_checkpointing: Literal["none", "selective", "full"] = option(
        "none",
        "Activations to recompute in the backward pass to save memory. selective: outputs of norms, modulations, gates "
        "and activation functions. full: all activations of a layer.",
    )
    dataloader_num_workers: int = option(
        0, "Number of processes that prepare batches. With 0, the training process prepares the batches.", least=0
    )
    logging_steps: int = option(10, "Number of steps whose mean loss is one point of the loss curve.", least=1)
    eval_steps: int = option(500, "Number of steps between evaluations; the last step is always evaluated.", least=1)
    eval_sequences: int | None = option(None, "Number of held-out sequences to evaluate on; defaults to all.", least=1)
    eval_batch_size: int = option(
        256,
        "Number of sequences per batch and process in evaluations. A decoder's forward pass has at most 4,096 tokens.",
        least=1,
    )
    save_steps: int = option(500, "Number of steps between checkpoints; the last step is always saved.", least=1)
    save_total_limit: int = option(2, "Number of the newest checkpoints to keep.", least=1)
    keep_best: Literal["left_to_right", "any_order"] | None = option(
        None, "Make the model from the evaluated step with the fewest held-out bits per byte in these orders."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after this number of evaluations without a better one.", needs="keep_best", least=1
    )
    num_samples: int = option(4, "Number of texts generated in each evaluation, for output_dir/samples.", least=0)
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = option(
        "tensorboard", "Experiment tracker; TensorBoard writes to output_dir."
    )

    @property
    def needs_source(self) -> bool:
        """Return whether the training also computes predictions of `init_from`."""
        return self.distillation_weight is not None


def order_settings(training: TrainingArguments) -> dict[str, Any]:
    """Return the arguments of `OrderDistribution` by name, without `left_to_right_fraction`."""
    names = ("orders", "block_length", "stride", "min_context", "max_context", "max_gap_length")
    return {name: getattr(training, name) for name in names}


def accumulation_steps(training: TrainingArguments, num_processes: int) -> int:
    """Return the number of forward passes per step in each process. Raise a `ValueError` if batches do not divide."""
    per_device = training.per_device_batch_size
    divisor = num_processes * (per_device or 1)
    if training.batch_size % divisor:
        raise ValueError(
            f"`batch_size` must be a multiple of the number of processes ({num_processes}) times "
            f"`per_device_batch_size` ({per_device or 1}), but is {training.batch_size}. Change one of them."
        )
    return 1 if per_device is None else training.batch_size // divisor
