# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear layers that a CPU computes as fast as it can."""

import torch
import torch.nn.functional as F
from torch import nn

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """
    `nn.Linear`, which in float32 inference on a CPU goes to oneDNN instead of MKL.

    Decoding multiplies few rows by large weights: for 8 to 63 rows oneDNN takes half to seven tenths of the time on two
    cores of an AMD EPYC (docs/results/speed). PyTorch has no switch for it but this operator, the one that
    `torch.compile` calls.
    """

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if uses_onednn(hidden_states, self.weight):
            return torch.ops.mkldnn._linear_pointwise(hidden_states, self.weight, self.bias, "none", [], "")
        return F.linear(hidden_states, self.weight, self.bias)


def uses_onednn(hidden_states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Plain float32 tensors on the CPU, nothing of which is recorded, compiled or computed in another dtype."""
    return (
        HAS_ONEDNN
        and hidden_states.device.type == "cpu"
        and hidden_states.dtype == weight.dtype == torch.float32
        and type(hidden_states) is torch.Tensor
        and type(weight) is nn.Parameter
        and hidden_states.numel() > 0
        and not (torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and torch.backends.mkldnn.enabled
    )
