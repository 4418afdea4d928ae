# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors that FSDP2 shards over processes. All others pass through these functions unchanged."""

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor


def keep_float32_gradients(accelerator: Accelerator) -> None:
    """
    Have FSDP2 in mixed precision send weights in 16 bits, and round nothing else. Call it before `prepare`.

    Accelerate's own policy also rounds what enters and leaves modules, times and losses included, and adds up the
    gradients of passes and processes in 16 bits.
    """
    if accelerator.distributed_type == DistributedType.FSDP and accelerator.mixed_precision != "no":
        plugin = accelerator.state.fsdp_plugin
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=plugin.mixed_precision_policy.param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of this process. It shares its memory with `tensor`."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor on every process. All processes must call it at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Return a copy of a full tensor on the device of `model`, a tensor of the same shape, sharded as it is."""
    tensor = tensor.to(local_part(model).device, copy=True)
    if not isinstance(model, DTensor) or tensor.dim() != model.dim():  # AdamW counts its steps in a scalar
        return tensor
    # Every process has the whole and keeps its part: nothing is sent.
    return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)
