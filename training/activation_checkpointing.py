# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing. To save memory, some activations are not kept, but recomputed in the backward pass.

`"selective"` keeps the input of each layer and the results of large matrix products and attention. It recomputes the
results of norms, modulations, gates and activation functions. These operations are fast, but their results take more
than half of the memory. `"full"` keeps only the input of each layer. Losses and gradients are bit for bit the same as
with `"none"`.
"""

import ctypes
import platform
from typing import Any, Literal

import torch
from accelerate.utils import is_torch_version
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

ActivationCheckpointing = Literal["none", "selective", "full"]

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}").default
    for kernel in (*KERNELS, "fused_attention_overrideable")
)


def checkpoint_activations(model: PreTrainedModel, kind: ActivationCheckpointing) -> None:
    """Make the layers of `model` recompute the activations that `kind` selects (see the top of this file)."""
    if kind == "none":
        return
    arguments: dict[str, Any] = {"use_reentrant": False}
    if kind == "selective":
        policy = _selective_policy(model.config.hidden_size)
        # torch.compile does not accept a functools.partial here.
        arguments["context_fn"] = lambda: create_selective_checkpoint_contexts(policy)
    if not is_torch_version(">=", "2.13.0"):
        torch._dynamo.config.optimize_ddp = False  # otherwise, DDP of a compiled model with recomputation is an error
    model.base_model.register_forward_hook(_release_memory)
    # Transformers 5.23 renamed the method from the second name to the first.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(arguments)


def _selective_policy(hidden_size: int) -> Any:
    def policy(
        context: SelectiveCheckpointContext, operator: torch._ops.OpOverload, *arguments: Any, **_: Any
    ) -> CheckpointPolicy:
        # Results of products with a small inner dimension, such as the modulations, are not saved. They take much
        # memory, but little time to recompute.
        is_large = operator in PRODUCTS and arguments[-1].shape[0] >= hidden_size
        return CheckpointPolicy.MUST_SAVE if is_large or operator in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _release_memory(model: PreTrainedModel, *_: Any) -> None:
    if model.training and model.device.type == "cpu" and not torch.compiler.is_compiling():
        release_freed_memory()


def release_freed_memory() -> None:
    """Let glibc return freed memory to the system. With other C libraries, do nothing.

    By default, glibc keeps freed tensors of up to 32 MiB that lie between activations still in use. After the forward
    pass of AO-GPT small with selective checkpointing, they take half a gigabyte.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
