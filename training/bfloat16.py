# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
bfloat16 on processors without instructions for it, where PyTorch's products of bfloat16 take up to a hundred times as
long as those of float32.

What autocast would multiply in bfloat16 is rounded to bfloat16 and multiplied in float32, and the result is rounded:
the numbers that hardware gives, which sums in float32 too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


def bfloat16_products(device: torch.device, mixed_precision: str) -> AbstractContextManager:
    """
    For forward passes: `Float32Products` on such a processor under bf16, otherwise nothing.

    Autograd leaves it before it goes back, so what is made again there must be told: see `checkpoint_activations`.
    """
    is_slow = device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    return Float32Products() if is_slow and mixed_precision == "bf16" else nullcontext()


class Float32Products(TorchFunctionMode):
    """Takes linear maps and attention away from autocast."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (F.linear, F.scaled_dot_product_attention) and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                if function is F.linear:
                    return _Linear.apply(*args, **kwargs)
                query, key, value = (states.bfloat16().float() for states in args[:3])
                return function(query, key, value, *args[3:], **kwargs).bfloat16()
        return function(*args, **kwargs)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rounded = states.bfloat16()
        ctx.save_for_backward(rounded, weight)
        ctx.dtype, ctx.has_bias = states.dtype, bias is not None
        return F.linear(rounded.float(), weight.bfloat16().float(), bias).bfloat16()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rounded, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = (*ctx.needs_input_grad, False)[:3]
        of_output = of_output.float()
        of_rows = of_output.flatten(0, -2)
        return (
            (of_output @ weight.bfloat16().float()).to(ctx.dtype) if needs_states else None,
            of_rows.t() @ rounded.flatten(0, -2).float() if needs_weight else None,
            of_rows.sum(dim=0) if needs_bias else None,
        )
