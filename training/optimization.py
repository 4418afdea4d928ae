# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizer and moving average of the weights."""

from copy import deepcopy

import torch
from torch import nn
from torch.optim import AdamW

from training.arguments import TrainingArguments
from training.sharding import full_tensor, local_part


def create_optimizer(model: nn.Module, training: TrainingArguments) -> AdamW:
    """Return an AdamW that applies weight decay to tensors of two or more dimensions, so not to biases and norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    return AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, fused=True)


def set_learning_rate(optimizer: AdamW, learning_rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


class ExponentialMovingAverage:
    """
    Exponential moving averages of the weights of a model, in float32, with the devices and the sharding of the weights.

    The decay of update u is min(decay, (1 + u) / (10 + u)), as in the released code. The initial weights therefore lose
    their influence even in short runs. (`torch.optim.swa_utils.AveragedModel` is not used, because it discards the
    initial weights at the first update.)

    Args:
        model: The model.
        decay: Largest decay, in [0, 1).

    Attributes:
        weights: The moving averages by name, as in `model.named_parameters()`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"`decay` must be at least 0 and below 1, but is {decay}.")
        self.weights = {name: weight.detach().to(torch.float32, copy=True) for name, weight in model.named_parameters()}
        first_name = {weight: name for name, weight in model.named_parameters()}
        every_name = model.named_parameters(remove_duplicate=False)  # tied weights have several names
        self._first_names = {name: first_name[weight] for name, weight in every_name}
        self.decay = decay
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the moving averages with the weights of `model`. Must be called after every optimizer step."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        averages = [local_part(average) for average in self.weights.values()]
        weights = [local_part(weight.detach()).float() for weight in model.parameters()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def averaged_model(self, blank: nn.Module) -> nn.Module:
        """
        Return a frozen model whose weights are the moving averages.

        All processes must call this together, and each process gets a complete model. The model uses the same memory as
        moving averages that are not sharded, so the next update also changes the model.

        Args:
            blank: Model of the same architecture, without weights (on the meta device).
        """
        model = deepcopy(blank).eval().requires_grad_(False)
        full = {name: full_tensor(average) for name, average in self.weights.items()}
        model.load_state_dict({name: full[first] for name, first in self._first_names.items()}, assign=True)
        return model
