# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW with decay groups, and the learning rate as a function of the step."""

import math

from torch import nn
from torch.optim import AdamW

from training.arguments import TrainingArguments


def create_optimizer(model: nn.Module, training: TrainingArguments) -> AdamW:
    """AdamW that decays tensors of two or more dimensions (matrices, tables) and leaves biases and norms alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    return AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, fused=True)


def learning_rate_at(step: int, training: TrainingArguments) -> float:
    """
    The learning rate of step 0 ... max_steps - 1: linear warm-up, which reaches the peak at step `warmup_steps`, then
    half a cosine, which would reach the final rate at step `max_steps`.
    """
    peak, final, warmup_steps = training.learning_rate, training.final_learning_rate, training.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (training.max_steps - warmup_steps)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: AdamW, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
