# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
What of a forward pass is kept for the backward pass, and what is made again there: activation checkpointing.

`"selective"` keeps of each block its input and what large products and attention made of it; norms, modulations, gates
and activation functions, which are hardly any work but more than half of the memory, are made again. `"full"` keeps the
input alone. The same operations are done on the same numbers, so losses and gradients are the same bit for bit as with
`"none"`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)
from transformers import PreTrainedModel

from training.hardware import return_freed_memory

ActivationCheckpointing = Literal["none", "selective", "full"]
Contexts = tuple[AbstractContextManager, AbstractContextManager]  # of the forward pass, and of what is made again

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ATTENTION = tuple(
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in (
        *("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)


def checkpoint_activations(
    model: PreTrainedModel,
    kind: ActivationCheckpointing,
    products: AbstractContextManager | None = None,
    is_compiled: bool = False,
) -> None:
    """
    Tells the blocks of `model` what to keep in training.

    Args:
        products: What forward passes run in, of `bfloat16_products`. Autograd leaves it before it goes back, so what is
            made again enters it anew.
        is_compiled: Whether forward passes will be, by torch.compile.

    Raises:
        ValueError: For a compiled model in `products`: torch.compile can neither enter it anew, nor within a block.
    """
    if kind == "none":
        return
    arguments: dict[str, Any] = {"use_reentrant": False}
    contexts = _selective_contexts(model.config.hidden_size) if kind == "selective" else noop_context_fn
    if products is not None and not isinstance(products, nullcontext):
        if is_compiled:
            raise ValueError(
                f"activation_checkpointing={kind}, mixed_precision=bf16 and dynamo_backend do not go together on a "
                "processor without bfloat16 instructions: leave one of them out."
            )
        contexts = _with_products(contexts, products)
    if contexts is not noop_context_fn:  # which torch.compile knows as the default alone
        arguments["context_fn"] = contexts
    # The first is what transformers 5.23 calls it, the second what it was called before.
    model.base_model.register_forward_hook(_return_memory_at_the_peak)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(arguments)


def _return_memory_at_the_peak(model: PreTrainedModel, *_: Any) -> None:
    """In training what is to be kept is there now; the head and the backward pass come next."""
    if model.training and model.device.type == "cpu" and not torch.compiler.is_compiling():
        return_freed_memory()


def _selective_contexts(hidden_size: int) -> Callable[[], Contexts]:
    def policy(
        context: SelectiveCheckpointContext, operator: torch._ops.OpOverload, *arguments: Any, **_: Any
    ) -> CheckpointPolicy:
        # A product costs two operations per term and number that is kept. That of a modulation has few terms.
        is_large = operator in PRODUCTS and arguments[-1].shape[0] >= hidden_size
        return CheckpointPolicy.MUST_SAVE if is_large or operator in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    # A function and no functools.partial, which torch.compile wants to be a constant.
    return lambda: create_selective_checkpoint_contexts(policy)


def _with_products(contexts: Callable[[], Contexts], products: AbstractContextManager) -> Callable[[], Contexts]:
    @contextmanager
    def both(recomputing: AbstractContextManager) -> Iterator[None]:
        with products, recomputing:
            yield

    def entering() -> Contexts:
        forward, recomputing = contexts()
        return forward, both(recomputing)

    return entering
