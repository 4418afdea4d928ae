# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of the weights: what is evaluated and published."""

from copy import deepcopy

import torch
from torch import nn

from training.sharding import local_part, whole_tensor


class ExponentialMovingAverage:
    """
    Float32 tensors that follow the weights of a model slowly, on its device and cut over processes as it is.

    After update u the decay is min(decay, (1 + u) / (10 + u)), as in the released code: short runs forget their
    initial weights too. (`torch.optim.swa_utils.AveragedModel` instead throws them away at the first update.)

    Attributes:
        weights: the averages by name, as in `model.named_parameters()`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"The decay of the moving average is {decay}; it must lie in [0, 1), for instance 0.999.")
        self.weights = {name: weight.detach().to(torch.float32, copy=True) for name, weight in model.named_parameters()}
        first_name = {weight: name for name, weight in model.named_parameters()}
        every_name = model.named_parameters(remove_duplicate=False)  # tied weights have several
        self._first_names = {name: first_name[weight] for name, weight in every_name}
        self.decay = decay
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the averages towards the weights of `model`; call it after every optimizer step."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        averages = [local_part(average) for average in self.weights.values()]
        weights = [local_part(weight.detach()).float() for weight in model.parameters()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def fill(self, blank: nn.Module) -> nn.Module:
        """
        A frozen model of the averages, whole on every process; to be called by all at once.

        Weights that are whole are shared with it, not copied, so they move with the next update.

        Args:
            blank: a model of the same architecture, for instance on the meta device.
        """
        model = deepcopy(blank).eval().requires_grad_(False)
        whole = {name: whole_tensor(average) for name, average in self.weights.items()}
        model.load_state_dict({name: whole[first] for name, first in self._first_names.items()}, assign=True)
        return model
