# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Memory of a training pass, counted by running the pass on tensors that have shapes, but no data."""

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modeling_aogpt.loading import Model
from training.activation_checkpointing import checkpoint_activations
from training.arguments import TrainingArguments
from training.objectives import OBJECTIVES
from training.optimization import trainable_weights


class MemoryCounter(TorchDispatchMode):
    """Context manager that counts the bytes of the tensors that operations create, as long as the tensors exist."""

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._known: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor, unless it shares the memory of a tensor that has been counted."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.current += storage.nbytes()
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())

    def _remove(self, storage: int, num_bytes: int) -> None:
        self._known.remove(storage)
        self.current -= num_bytes

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            if isinstance(value, torch.Tensor):
                self.add(value)
        return output


def count_pass(
    model: Model, training: TrainingArguments, shape: tuple[int, int], is_16_bit: bool, has_gradients: bool
) -> tuple[int, int]:
    """Count the bytes of a pass over input ids of `shape` (batch, n), without those of the weights.

    The weights of `model` are replaced by tensors without data. With `has_gradients`, the gradients of an earlier pass
    of the same step exist. With `distillation_weight`, all sequences are left to right.

    Returns:
        The bytes after the forward pass (activations, 16-bit copies of weights, and the gradient of the head), and the
        largest number of bytes of forward and backward pass.
    """
    checkpoint_activations(model.train(), training.activation_checkpointing)
    counter = MemoryCounter()
    with FakeTensorMode():
        weights = {  # tied weights are one tensor
            weight: nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), weight.requires_grad)
            for weight in model.parameters()
        }
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                counter.add(weights[weight])
                setattr(module, name, weights[weight])
        weight_bytes = counter.current
        batch = {"input_ids": torch.zeros(shape, dtype=torch.long)}
        if model.config.model_type == "aogpt":
            kind, batch["orders"] = "decoder", torch.arange(shape[1]).expand(shape)
            batch["left_to_right_rows"] = torch.arange(shape[0])
        else:
            kind, batch["is_masked"] = "encoder", torch.ones(shape, dtype=torch.bool)
            batch["masked_indices"] = torch.arange(shape[0] * shape[1])
            batch["times"] = torch.ones(shape[0], dtype=torch.double)
        with counter:
            for weight in trainable_weights(model).values() if has_gradients else ():
                weight.grad = torch.zeros_like(weight)
            with torch.autocast("cpu", dtype=torch.bfloat16) if is_16_bit else nullcontext():
                objective = OBJECTIVES[kind, training.objective](model)
                objective.distillation_weight = training.distillation_weight
                loss = objective(**batch)
            kept = counter.current - weight_bytes
            loss.backward()
        return kept, counter.peak - weight_bytes
