# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of the weights: what is evaluated and published."""

from copy import deepcopy

import torch
from torch import nn


class ExponentialMovingAverage:
    """
    A float32 copy of the model, `ema.model`, whose weights follow the training weights slowly.

    After update u the decay is min(decay, (1 + u) / (10 + u)), as in the released code: short runs forget their
    initial weights too. (`torch.optim.swa_utils.AveragedModel` instead throws them away at the first update.)
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"The decay of the moving average is {decay}; it must lie in [0, 1), for instance 0.999.")
        self.model = deepcopy(model).float().eval().requires_grad_(False)
        self.decay = decay
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the average towards the weights of `model`; call it after every optimizer step."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        weights = [parameter.float() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.model.parameters()), weights, 1 - decay)
