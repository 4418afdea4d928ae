# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Loss of a language-model head, computed without holding the logits of all positions in memory.

The forward pass computes the logits of one chunk of positions at a time. It already computes the gradients of the loss
with respect to the hidden states and the head, and keeps only these. The backward pass multiplies the gradients by the
gradient of the loss, so no logits are computed twice.
"""

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .devices import product_dtype

# Largest number of logits in memory at a time. A matrix product is efficient on an accelerator if it has a few thousand
# rows. With GPT-2's vocabulary, 2**28 logits are 5,000 rows, and take 1 GiB in float32.
LOGITS_PER_CHUNK = {"cpu": 2**25, "accelerator": 2**28}
# The vocabulary is padded to a multiple of this number, because matrix products with an odd width are far slower on an
# accelerator.
WIDTH_MULTIPLE = {"cpu": 1, "accelerator": 64}

Loss = Literal["cross_entropy", "score_entropy"]


def head_loss(
    hidden_states: torch.Tensor,
    head: nn.Linear,
    targets: torch.LongTensor,
    weights: torch.Tensor,
    loss: Loss = "cross_entropy",
    num_ids: int | None = None,
) -> torch.Tensor:
    """
    Return the weighted sum of the losses of N positions, as a scalar in float32 (or float64 for float64 inputs).

    For logits = head(hidden_states), the number V of ids, and Z = logsumexp(logits), the loss of a position is

    * `"cross_entropy"`: Z - logits[target];
    * `"score_entropy"`: exp(Z) / V - 1 - (logits[target] - log V). This is the score entropy divided by the true ratio
      of probabilities (arXiv 2310.16834, section 3.2). According to the predicted ratios, the log-probability of an id
      is its logit minus log V. If these probabilities sum to 1 (Z = log V), the loss is the cross-entropy.

    Args:
        hidden_states (`torch.Tensor` of shape `(N, hidden_size)`): Inputs of the head.
        head (`nn.Linear`): Head, with or without bias.
        targets (`torch.LongTensor` of shape `(N,)`): Target id of each position.
        weights (`torch.Tensor` of shape `(N,)`): Weight of the loss of each position. The weights get no gradient.
        loss (`str`, defaults to `"cross_entropy"`): `"cross_entropy"` or `"score_entropy"`.
        num_ids (`int`, *optional*): V, the number of ids. Only the first V outputs of the head are used. Defaults
            to all outputs.
    """
    inputs = hidden_states, head.weight, head.bias
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` ignores `torch.no_grad`, so detach the inputs
        inputs = (None if tensor is None else tensor.detach() for tensor in inputs)
    return _HeadLoss.apply(*inputs, targets, weights, loss, num_ids or len(head.weight))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.LongTensor,
        weights: torch.Tensor,
        loss: Loss,
        num_ids: int,
    ) -> torch.Tensor:
        dtype = _matmul_dtype(hidden_states)
        exact = torch.promote_types(dtype, torch.float32)
        kind = "cpu" if hidden_states.device.type == "cpu" else "accelerator"
        vocab_size = len(weight)
        padding = -vocab_size % WIDTH_MULTIPLE[kind]
        with torch.autocast(hidden_states.device.type, enabled=False):
            table = nn.functional.pad(weight.to(dtype), (0, 0, 0, padding))
            offsets = None if bias is None else nn.functional.pad(bias.to(dtype), (0, padding))
            needs_grad = ctx.needs_input_grad[:3]
            grad_hidden, grad_weight, grad_bias = (
                torch.zeros_like(tensor, dtype=exact if index else None) if needed else None
                for index, (tensor, needed) in enumerate(zip((hidden_states, weight, bias), needs_grad, strict=True))
            )
            total = torch.zeros((), dtype=exact, device=hidden_states.device)
            # The gradients are stored divided by `unit`, a number close to the mean weight. Without the division,
            # gradients with weights of 1 / N would underflow in float16, because the loss scale is applied only in the
            # backward pass. The unit is a power of two, so the division does not round.
            mean = (weights.to(exact).sum() / max(len(weights), 1)).clamp(min=torch.finfo(exact).tiny)
            unit = mean / mean.frexp().mantissa
            chunk_size = max(LOGITS_PER_CHUNK[kind] // len(table), 1)
            for first in range(0, len(targets), chunk_size):
                chunk = slice(first, first + chunk_size)
                states, ids, scale = hidden_states[chunk].to(dtype), targets[chunk, None], weights[chunk].to(exact)
                logits = nn.functional.linear(states, table, offsets)
                chunk_total, grad_logits = differentiate_chunk(logits, ids, scale, unit, loss, num_ids, any(needs_grad))
                total += chunk_total
                if grad_hidden is not None:
                    grad_hidden[chunk] = grad_logits @ table
                if grad_weight is not None:
                    grad_weight += (grad_logits.t() @ states)[:vocab_size]
                if grad_bias is not None:
                    grad_bias += grad_logits.sum(dim=0)[:vocab_size]
        ctx.save_for_backward(unit, grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = [tensor if tensor is None else tensor.dtype for tensor in (hidden_states, weight, bias)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, *gradients = ctx.saved_tensors
        gradients = (
            None if gradient is None else gradient.mul_(grad_total * unit).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None


def differentiate_chunk(
    logits: torch.Tensor,
    ids: torch.LongTensor,
    scale: torch.Tensor,
    unit: torch.Tensor,
    loss: Loss,
    num_ids: int,
    needs_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Return the weighted loss of a chunk of positions, and its gradient (positions, width) divided by `unit`.

    `logits` (positions, width) may be overwritten. `ids` (positions, 1) are targets, `scale` (positions,) weights.
    """
    dtype, logits = logits.dtype, logits.to(scale.dtype)
    if logits.shape[1] > num_ids:
        logits[:, num_ids:] = -math.inf
    target_logits = logits.gather(1, ids)[:, 0]
    largest = logits.amax(dim=-1)
    sums = logits.sub_(largest[:, None]).exp_().sum(dim=-1)  # overwrites the logits
    log_sums = sums.log() + largest
    if loss == "cross_entropy":
        losses, factors = log_sums - target_logits, sums.reciprocal()
    else:
        log_ids = math.log(num_ids)
        losses = (log_sums - log_ids).exp() - 1 - (target_logits - log_ids)
        factors = (largest - log_ids).exp()
    total = (losses * scale).sum()
    if not needs_grad:
        return total, None
    scale = scale / unit
    grad_logits = logits.mul_((factors * scale)[:, None])
    grad_logits.scatter_add_(1, ids, -scale[:, None])
    return total, grad_logits.to(dtype)


def _matmul_dtype(hidden_states: torch.Tensor) -> torch.dtype:
    """Return the dtype of matrix products: that of autocast, or else of `hidden_states`; at least float32 on a CPU."""
    dtype = product_dtype(hidden_states.device, hidden_states.dtype)
    return torch.promote_types(dtype, torch.float32) if hidden_states.is_cpu else dtype
