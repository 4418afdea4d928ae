# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear layers that a CPU computes as fast as it can, and copies of models for generations there."""

import copy

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

    Attributes:
        packed (`torch.Tensor`, *optional*): The weight again, laid out as oneDNN computes with it, in the layers of
            [`with_packed_weights`] alone. Several rows take 7 to 20 % less time; one takes longer.
    """

    packed: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if not uses_onednn(hidden_states, self.weight, self.bias):
            return F.linear(hidden_states, self.weight, self.bias)
        is_one_row = hidden_states.numel() == self.in_features
        weight = self.weight if self.packed is None or is_one_row else self.packed
        return torch.ops.mkldnn._linear_pointwise(hidden_states, weight, self.bias, "none", [], "")


def uses_onednn(hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Plain float32 tensors on the CPU, nothing of which is recorded, compiled or computed in another dtype."""
    return (
        HAS_ONEDNN
        and hidden_states.device.type == "cpu"
        and hidden_states.dtype == weight.dtype == torch.float32
        and type(hidden_states) is torch.Tensor
        and type(weight) is nn.Parameter
        and hidden_states.numel() > 0
        and not (
            torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden_states, weight, bias))
        )
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and torch.backends.mkldnn.enabled
        # The operator has no forward derivative, and those who watch or count operators do not know it.
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._len_torch_dispatch_stack()
    )


def with_packed_weights(model: nn.Module) -> nn.Module:
    """
    A copy of `model` for many passes without gradients, whose linear layers hold their weights packed too. It shares
    all else; it does not follow when the weights change, so it must not outlive a generation. Without oneDNN, or if
    Accelerate has the weights in hand, `model`.
    """
    if not (HAS_ONEDNN and torch.backends.mkldnn.enabled) or is_dispatched(model):
        return model
    model = copy_of_modules(model, {})
    for layer in model.modules():
        if isinstance(layer, Linear) and is_plain(layer.weight, torch.float32):
            layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    return model


def in_fast_dtype(model: nn.Module) -> nn.Module:
    """
    `model`; or where it is in bfloat16, on a CPU without instructions for that, a copy of it in float32 for a
    generation or a score, which is several times as fast there and more exact. As [`with_packed_weights`], for
    the rest.
    """
    slow = [weight for weight in model.parameters() if is_plain(weight, torch.bfloat16)]
    if not slow or torch.cpu._is_avx512_bf16_supported() or torch.is_autocast_enabled("cpu"):
        return model
    if is_compiled(model) or is_dispatched(model):
        return model
    return copy_of_modules(model, {id(weight): nn.Parameter(weight.detach().float(), False) for weight in slow})


def is_compiled(model: nn.Module) -> bool:
    """Whether the `compile` method of it, or of a part of it, was called."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def is_dispatched(model: nn.Module) -> bool:
    """Whether Accelerate, or somebody else, gave it or a part of it another `forward`, which no copy would follow."""
    return any("forward" in vars(module) for module in model.modules())


def is_plain(weight: nn.Parameter, dtype: torch.dtype) -> bool:
    """Neither quantised nor elsewhere than on the CPU."""
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype == dtype


def copy_of_modules(module: nn.Module, weights: dict[int, nn.Parameter]) -> nn.Module:
    """A copy that shares hooks, configuration and weights, but those whose id is in `weights`, with `module`."""
    copied = copy.copy(module)
    copied._parameters = {name: weights.get(id(weight), weight) for name, weight in module._parameters.items()}
    copied._modules = {
        name: None if child is None else copy_of_modules(child, weights) for name, child in module._modules.items()
    }
    return copied
