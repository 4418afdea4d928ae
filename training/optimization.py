# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW with decay groups, and the learning rate as a function of the step."""

import math

from torch import nn
from torch.optim import AdamW


def create_optimizer(
    model: nn.Module, learning_rate: float, weight_decay: float, betas: tuple[float, float], eps: float
) -> AdamW:
    """AdamW that decays tensors of two or more dimensions (matrices, tables) and leaves biases and norms alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=True)


def learning_rate_at(step: int, peak: float, final: float, warmup_steps: int, max_steps: int) -> float:
    """
    The learning rate of step 0 ... max_steps - 1: linear warm-up, which reaches `peak` at step `warmup_steps`, then
    half a cosine, which would reach `final` at step `max_steps`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (max_steps - warmup_steps)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: AdamW, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
