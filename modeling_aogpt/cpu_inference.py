# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Inference on a CPU: copies of models in which large linear layers use oneDNN instead of PyTorch's default, MKL.

In float32, oneDNN takes 0.5 to 0.7 of MKL's time from 16 rows on (one core of an AMD EPYC), but a call takes at least
10 us. Packing the weights, that is, copying them into oneDNN's own memory layout, reduces the time further. In
float32, it falls to 50 % for 4 rows, 75 % for 16 rows and 95 % for many rows, but not for a single row. In bfloat16, it
also falls to 50 % for a single row.

PyTorch has no public function for these operators, but `torch.compile` uses them too. They support float32 and, on a
CPU with bfloat16 instructions, bfloat16. `torch.backends.mkldnn.flags(enabled=False)` turns them off. Results with and
without them differ only by rounding.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .devices import is_dispatched

LEAST_PRODUCTS = 2**19  # smallest number of multiplications for which oneDNN is about as fast as MKL in float32
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class OneDNNLinear(nn.Linear):
    """Linear layer of a copy made by [`copy_for_cpu`]. It supports neither autograd nor autocast."""

    packed_weight: torch.Tensor | None = None  # the weight in oneDNN's layout, set by `pack_weights`

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return `hidden_states @ weight.T + bias`."""
        dtype, num_rows = self.weight.dtype, hidden_states.shape[:-1].numel()
        least = LEAST_PRODUCTS if dtype == torch.float32 else 1
        if num_rows * self.weight.numel() < least or hidden_states.dtype != dtype:
            return F.linear(hidden_states, self.weight, self.bias)
        is_packed = self.packed_weight is not None and gains_from_packing(dtype, num_rows)
        weight = self.packed_weight if is_packed else self.weight
        return torch.ops.mkldnn._linear_pointwise(hidden_states, weight, self.bias, "none", [], "")


def copy_for_cpu(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose plain linear layers on a CPU use oneDNN.

    Use the copy for a single call without gradients. It shares parameters, buffers, hooks and configuration with
    `model`. If oneDNN cannot be used, or if Accelerate manages the weights, return `model` itself.
    """
    may_use_onednn = (
        HAS_ONEDNN
        and torch.backends.mkldnn.enabled
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        # oneDNN's operator has no forward-mode derivative, and dispatch modes such as FLOP counters do not support it.
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._len_torch_dispatch_stack()
    )
    has_layers = may_use_onednn and any(_suits_onednn(module) for module in model.modules())
    return _copy(model) if has_layers and not is_dispatched(model) else model


def pack_weights(copied: nn.Module) -> None:
    """Store the weights of a copy made by [`copy_for_cpu`] a second time, in oneDNN's layout.

    Later changes of a parameter do not change these packed weights.
    """
    for layer in copied.modules():
        if isinstance(layer, OneDNNLinear):
            layer.packed_weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)


def gains_from_packing(dtype: torch.dtype, num_rows: int) -> bool:
    """Return whether oneDNN multiplies `num_rows` rows faster if the weights are packed."""
    return _has_fast_products(dtype) and num_rows >= (1 if dtype == torch.bfloat16 else 2)


def _copy(module: nn.Module) -> nn.Module:
    # `copy.copy` does not support parametrized modules.
    copied = object.__new__(OneDNNLinear if _suits_onednn(module) else type(module))
    copied.__dict__ = module.__dict__.copy()
    copied._modules = {name: None if child is None else _copy(child) for name, child in module._modules.items()}
    return copied


def _suits_onednn(module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter  # quantized weights have classes of their own
        and module.weight.device.type == "cpu"
        and _has_fast_products(module.weight.dtype)
        and (module.bias is None or module.bias.is_contiguous())  # oneDNN ignores the strides of a bias
    )


def _has_fast_products(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported())
