# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Activation checkpointing: what a forward pass keeps for the backward pass, and what is computed again there.

`"selective"` keeps the input of each block and the results of large products and attention. Norms, modulations, gates
and activation functions, which are little work but more than half of the memory, are computed again. `"full"` keeps
the input alone. The same operations are done on the same numbers, so losses and gradients are the same bit for bit as
with `"none"`.
"""

import ctypes
import platform
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

ActivationCheckpointing = Literal["none", "selective", "full"]

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in (
        *("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)


def checkpoint_activations(model: PreTrainedModel, kind: ActivationCheckpointing) -> None:
    """Tell the blocks of `model` what to keep in training."""
    if kind == "none":
        return
    arguments: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        policy = _selective_policy(model.config.hidden_size)
        # A function and no functools.partial, which torch.compile wants to be a constant.
        arguments["context_fn"] = lambda: create_selective_checkpoint_contexts(policy)
    model.base_model.register_forward_hook(_return_memory_at_the_peak)
    # The first is what transformers 5.23 calls it, the second what it was called before.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(arguments)


def _selective_policy(hidden_size: int) -> Any:
    def policy(
        context: SelectiveCheckpointContext, operator: torch._ops.OpOverload, *arguments: Any, **_: Any
    ) -> CheckpointPolicy:
        # A product costs two operations per term and number that is kept. That of a modulation has few terms.
        is_large = operator in PRODUCTS and arguments[-1].shape[0] >= hidden_size
        return CheckpointPolicy.MUST_SAVE if is_large or operator in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _return_memory_at_the_peak(model: PreTrainedModel, *_: Any) -> None:
    """Return freed memory once all activations of the blocks are kept; the head and the backward pass come next."""
    if model.training and model.device.type == "cpu" and not torch.compiler.is_compiling():
        return_freed_memory()


def return_freed_memory() -> None:
    """
    Have the C library give freed tensors back to the system, if it is glibc.

    It keeps those of up to 32 MiB in holes between tensors that live longer, as activations do: after the forward pass
    of AO-GPT small with selective checkpointing, half a gigabyte.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
