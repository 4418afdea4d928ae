# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of which each process may hold a part only, as under FSDP2; all others pass through as they are."""

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


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
