# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions for tensors that FSDP2 shards over processes. They also accept tensors that are not sharded."""

from collections.abc import Iterator
from contextlib import contextmanager

import accelerate
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, DynamoBackend, is_torch_version
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor


def check_sharding(accelerator: Accelerator) -> None:
    """Raise a `ValueError` for an unsupported kind of sharding, or if PyTorch or Accelerate is too old for sharding."""
    if accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ValueError(
            f"{accelerator.distributed_type.value} is not supported. Use DDP or FSDP2, as in training/accelerate/."
        )
    if accelerator.distributed_type != DistributedType.FSDP:
        return
    if accelerator.state.fsdp_plugin.fsdp_version != 2:
        raise ValueError("FSDP of version 1 is not supported. Use version 2, as in training/accelerate/fsdp2.yaml.")
    if not is_torch_version(">=", "2.9.0"):
        raise ValueError(f"FSDP2 needs PyTorch 2.9, but this is {torch.__version__}. Upgrade it, or train with DDP.")
    plugin = accelerator.state.dynamo_plugin
    is_compiled = plugin.backend != DynamoBackend.NO and plugin.use_regional_compilation
    if is_compiled and not hasattr(accelerate.accelerator, "compile_regions_fsdp2"):
        raise ValueError(
            f"Accelerate {accelerate.__version__} cannot compile the layers of a sharded model. Upgrade it, or set "
            "`--dynamo_backend no`."
        )


def set_up_sharding(accelerator: Accelerator) -> None:
    """Change defaults of FSDP2 in Accelerate. Must be called before `Accelerator.prepare`.

    With mixed precision, only weights are rounded: the default also rounds diffusion times and losses, and accumulates
    gradients in 16 bits. Gradients are sharded after every forward pass of a step: the default sums them first, so
    every process needs memory for the gradients of all weights.
    """
    is_fsdp = accelerator.distributed_type == DistributedType.FSDP
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = is_fsdp
    if is_fsdp and accelerator.mixed_precision != "no":
        plugin = accelerator.state.fsdp_plugin
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=plugin.mixed_precision_policy.param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )


@contextmanager
def gathered(module: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Context manager in which every process has all weights of a sharded module, in the precision of training."""
    root, *layers = [part for part in module.modules() if isinstance(part, FSDPModule)] or [None]
    if root is None:
        yield
        return
    # The module of the first forward pass becomes the root. A forward pass of a part would make this part a root.
    root._get_fsdp_state()._lazy_init()
    root.set_reshard_after_forward(False)
    for part in (root, *layers):
        part.unshard()
    try:
        yield
    finally:
        for part in (root, *layers):
            part.reshard()
        for layer in layers:
            layer.set_reshard_after_forward(accelerator.state.fsdp_plugin.reshard_after_forward, recurse=False)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard of `tensor` that this process holds, without copying it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the complete tensor on every process. All processes must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
    """Return a copy of the complete tensor `tensor`, with the device and the sharding of `template`."""
    tensor = tensor.to(local_part(template).device, copy=True)
    if not isinstance(template, DTensor) or tensor.dim() != template.dim():  # AdamW's step is a scalar without shards
        return tensor
    # src_data_rank=None avoids communication: every process has the complete tensor, and keeps its shard.
    return distribute_tensor(tensor, template.device_mesh, template.placements, src_data_rank=None)
