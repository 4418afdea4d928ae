# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Optimizer, its learning rate, and moving average of the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import AdamW

from training.arguments import TrainingArguments
from training.sharding import local_part


def create_optimizer(model: nn.Module, training: TrainingArguments) -> AdamW:
    """Return an AdamW that applies weight decay only to tensors of two or more dimensions, not to biases and norms."""
    decays = (training.weight_decay, 0.0)
    groups = [{"params": p, "weight_decay": decay} for p, decay in zip(parameter_groups(model), decays, strict=True)]
    betas = (training.adam_beta1, training.adam_beta2)
    return AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, fused=True)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters of two or more dimensions, which get weight decay, and the others."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]


def learning_rate_at(step: int, training: TrainingArguments) -> float:
    """Return the learning rate of a step in 0 ... `max_steps` - 1.

    It rises linearly until step `warmup_steps`. With `"cosine"`, it then falls along half a cosine. With
    `"warmup_stable_decay"`, it falls linearly in the last `decay_steps` steps. It would end at step `max_steps`.
    """
    peak, final, warmup_steps = training.learning_rate, training.final_learning_rate, training.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if training.learning_rate_schedule == "warmup_stable_decay":
        remaining = min((training.max_steps - step) / training.decay_steps, 1.0)
        return final + (peak - final) * remaining if remaining < 1 else peak
    progress = (step - warmup_steps) / (training.max_steps - warmup_steps)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def first_decay_step(training: TrainingArguments) -> int | None:
    """Return the first step of the final decay, or None for a cosine. `max_steps` has no effect on earlier steps."""
    if training.learning_rate_schedule == "warmup_stable_decay":
        return training.max_steps - training.decay_steps
    return None


def num_common_steps(one: TrainingArguments, other: TrainingArguments) -> int:
    """Return the number of steps for which the learning rates and left-to-right fractions of two runs are the same."""
    steps = range(min(one.max_steps, other.max_steps))
    return next((step for step in steps if _values_at(step, one) != _values_at(step, other)), len(steps))


def _values_at(step: int, training: TrainingArguments) -> tuple[float, ...]:
    num_steps = training.left_to_right_steps
    return learning_rate_at(step, training), 0.0 if num_steps is None else min(step / num_steps, 1.0)


def trainable_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that are trained, by name. With LoRA, leave out the weights of the initial model."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


class ExponentialMovingAverage:
    """Exponential moving averages of the weights by name, in float32, on the same devices and with the same sharding.

    The decay of update u is min(decay, (1 + u) / (10 + u)), as in the released code. The initial weights therefore lose
    their influence even in short runs. (`torch.optim.swa_utils.AveragedModel` discards them at the first update.)
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        weights = trainable_weights(model).items()
        self.weights = {name: weight.detach().to(torch.float32, copy=True) for name, weight in weights}
        self.decay = decay
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the moving averages with the weights of `model`. Must be called after every optimizer step."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        averages = [local_part(average) for average in self.weights.values()]
        weights = [local_part(weight.detach()).float() for weight in trainable_weights(model).values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Context manager in which `model` has the moving averages, and `self.weights` holds the weights of `model`."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        for average, weight in zip(self.weights.values(), trainable_weights(model).values(), strict=True):
            average, weight = local_part(average), local_part(weight.detach())
            live = weight.clone()
            weight.copy_(average)
            average.copy_(live)
