# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Losses of a language-model head, without ever holding the logits of all rows.

Logits are made for a chunk of rows at a time, and their gradient in the same breath, in place: what stays for the
backward pass is the gradient of the hidden states and of the head, which are needed anyway. Nothing is computed twice.
"""

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable

LOGITS_AT_ONCE = 2**25  # 128 MiB of float32

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
    The weighted sum over rows of a loss of `logits = head(hidden_states)`, in float32 at least.

    With V ids and Z = log(sum of exp(logits)), the loss of a row is

    * `"cross_entropy"`: Z - logits[target];
    * `"score_entropy"`: exp(Z) / V - 1 - (logits[target] - log V), the score entropy of a ratio over its true value
      (arXiv 2310.16834, section 3.2), where logits - log V is the log of the probability that the ratio implies. For
      normalised logits, Z = log V, it is the cross-entropy.

    Args:
        hidden_states (`torch.Tensor` of shape `(rows, hidden_size)`): What the head takes.
        head (`nn.Linear`): From `hidden_size` to ids, with or without bias.
        targets (`torch.LongTensor` of shape `(rows,)`): An id for each row.
        weights (`torch.Tensor` of shape `(rows,)`): Of each row's loss. No gradient flows to them.
        num_ids (`int`, *optional*): V, if only the first ids count; all of the head's unless given.
    """
    return _HeadLoss.apply(hidden_states, head.weight, head.bias, targets, weights, loss, num_ids or len(head.weight))


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
        dtype = dtype_of_products(hidden_states)
        exact = torch.promote_types(dtype, torch.float32)
        with torch.autocast(hidden_states.device.type, enabled=False):
            table = weight[:num_ids].to(dtype)
            offsets = None if bias is None else bias[:num_ids].to(dtype)
            needs = ctx.needs_input_grad[:3]
            of_hidden, of_weight, of_bias = (
                torch.zeros_like(tensor, dtype=exact if index else None) if needed else None
                for index, (tensor, needed) in enumerate(zip((hidden_states, weight, bias), needs, strict=True))
            )
            total = torch.zeros((), dtype=exact, device=hidden_states.device)
            # The gradient is made before a loss scale comes to it: in units of about the mean weight, since float16
            # would round weights of 1 / rows to nothing. Powers of two, which round nothing themselves.
            mean = (weights.to(exact).sum() / max(len(weights), 1)).clamp(min=torch.finfo(exact).tiny)
            unit = mean / mean.frexp().mantissa
            rows_at_once = max(LOGITS_AT_ONCE // num_ids, 1)
            for first in range(0, len(targets), rows_at_once):
                chunk = slice(first, first + rows_at_once)
                states, ids, scale = hidden_states[chunk].to(dtype), targets[chunk, None], weights[chunk].to(exact)
                logits = nn.functional.linear(states, table, offsets).to(exact)
                of_targets = logits.gather(1, ids)[:, 0]
                largest = logits.amax(dim=-1)
                sums = logits.sub_(largest[:, None]).exp_().sum(dim=-1)  # logits are no more: their exponentials are
                log_sums = sums.log() + largest
                if loss == "cross_entropy":
                    losses, factors = log_sums - of_targets, sums.reciprocal()
                else:
                    log_ids = math.log(num_ids)
                    losses = (log_sums - log_ids).exp() - 1 - (of_targets - log_ids)
                    factors = (largest - log_ids).exp()
                total += (losses * scale).sum()
                if not any(needs):
                    continue
                scale = scale / unit
                of_logits = logits.mul_((factors * scale)[:, None])
                of_logits.scatter_add_(1, ids, -scale[:, None])
                of_logits = of_logits.to(dtype)
                if of_hidden is not None:
                    of_hidden[chunk] = of_logits @ table
                if of_weight is not None:
                    of_weight[:num_ids] += of_logits.t() @ states
                if of_bias is not None:
                    of_bias[:num_ids] += of_logits.sum(dim=0)
        ctx.save_for_backward(unit, of_hidden, of_weight, of_bias)
        ctx.dtypes = [tensor if tensor is None else tensor.dtype for tensor in (hidden_states, weight, bias)]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        unit, *gradients = ctx.saved_tensors
        gradients = (
            None if gradient is None else gradient.mul_(of_total * unit).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None


def dtype_of_products(hidden_states: torch.Tensor) -> torch.dtype:
    """In what the head is multiplied: as autocast says, or as the states are."""
    device = hidden_states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype
    # Few processors multiply shorter numbers faster, many do slower.
    return torch.promote_types(dtype, torch.float32) if device == "cpu" else dtype
