# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of which each process may hold a part only, as under FSDP2; all others pass through as they are."""

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor


def round_weights_alone(accelerator: Accelerator) -> None:
    """
    Has FSDP2 in mixed precision send weights in 16 bits, and round nothing else. To be called before `prepare`.

    Left to itself, Accelerate rounds what enters and leaves modules, times and losses too, and adds up the gradients of
    passes and processes in 16 bits.
    """
    if accelerator.distributed_type == DistributedType.FSDP and accelerator.mixed_precision != "no":
        plugin = accelerator.state.fsdp_plugin
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=plugin.mixed_precision_policy.param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds. Shares its memory with `tensor`."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, on every process. To be called by all processes at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A copy of the whole `tensor` that lies where `model`, of the same shape, lies: on its device, cut as it is."""
    tensor = tensor.to(local_part(model).device, copy=True)
    if not isinstance(model, DTensor) or tensor.dim() != model.dim():  # AdamW counts its steps in a whole scalar
        return tensor
    # Every process has the whole and keeps its part: nothing is sent.
    return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)
