# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Helpers for devices and inference: copies that do not block, random numbers, cuDNN attention, and evaluation mode."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition, Lock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Models in evaluation mode, with the number of users and the modes to restore.
_MODES: dict[nn.Module, tuple[int, dict[nn.Module, bool]]] = {}
_LOCK = Lock()
# On a GPU, PyTorch copies a mask in every layer unless its rows begin at multiples of this number of elements.
MASK_ALIGNMENT = 8


def rows_per_head_call(most: int, num_ids: int) -> int:
    """Return the number of rows of logits to keep in memory: `most`, or fewer for a vocabulary larger than GPT-2's."""
    return max(1, min(most, most * 50304 // num_ids))


def to_device(values: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """Copy values to a device. A copy from the CPU to an accelerator does not wait for work that is queued there."""
    return values.to(device, non_blocking=values.is_cpu)


def execution_device(module: nn.Module, default: torch.device) -> torch.device:
    """Return the device on which Accelerate runs `module`, or `default` if the model has no `device_map`."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return default if device is None else torch.device(device)


def draw_uniform(
    *size: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> torch.Tensor:
    """Draw float64 numbers uniformly from [0, 1) on the device of `generator` (or the CPU). Move them to `device`.

    The same seed of a CPU generator therefore gives the same orders and tokens on every device.
    """
    check_generator(generator)
    draw_device = "cpu" if generator is None else generator.device
    return to_device(torch.rand(*size, generator=generator, device=draw_device, dtype=torch.float64), device)


def check_generator(generator: object) -> None:
    """Raise a `TypeError` unless `generator` is a generator of PyTorch or None."""
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(
            f"`generator` must be a torch.Generator, but has type {type(generator).__name__}. "
            "Use torch.Generator().manual_seed(0)."
        )


def product_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of matrix products of `dtype` tensors. Autocast may change it."""
    return torch.get_autocast_dtype(device.type) if uses_autocast(device.type) else dtype


def uses_autocast(device_type: str) -> bool:
    """Return whether autocast is on for a type of device. The meta device has no autocast."""
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def mask_for_kernels(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an attention mask (..., rows, slots) in the form that is fastest on its device.

    On an accelerator, PyTorch converts a boolean mask to numbers in every layer. This function does so once, unless the
    mask has been converted. `dtype` must be the dtype of attention queries.
    """
    if mask.is_cpu or mask.dtype != torch.bool or torch.compiler.is_compiling():
        return mask
    num_slots = mask.shape[-1]
    shape = *mask.shape[:-1], num_slots + -num_slots % MASK_ALIGNMENT
    return mask.new_full(shape, float("-inf"), dtype=dtype)[..., :num_slots].masked_fill_(mask, 0.0)


# Whether `without_cudnn_attention` does nothing in this thread.
_ALLOWS_CUDNN: ContextVar[bool] = ContextVar("_ALLOWS_CUDNN", default=False)


@contextmanager
def allow_cudnn_attention(is_allowed: bool = True) -> Iterator[None]:
    """Keep cuDNN attention on within a `with` statement, in which [`without_cudnn_attention`] does nothing.

    This is faster for shapes that are repeated many times: on an NVIDIA H200, one row of one sequence with 1024 slots
    takes 6.5 instead of 60 microseconds.
    """
    token = _ALLOWS_CUDNN.set(is_allowed)
    try:
        yield
    finally:
        _ALLOWS_CUDNN.reset(token)


# PyTorch's switch for cuDNN attention applies to all threads of a process. The first thread that enters
# `without_cudnn_attention` turns cuDNN attention off, and the last thread that leaves it restores the switch.
_CUDNN_SWITCH = Condition()
_num_without_cudnn, _cudnn_was_enabled = 0, True


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Turn off cuDNN attention on GPUs within a `with` statement, because it is slow for shapes that occur only once.

    cuDNN makes an execution plan for every new shape, and making the plan takes longer than a forward pass. In
    addition, gradients of cuDNN attention with an attention mask can be NaN (PyTorch issue 196678).
    """
    global _num_without_cudnn, _cudnn_was_enabled
    if device.type == "cpu" or _ALLOWS_CUDNN.get():
        yield
        return
    with _CUDNN_SWITCH:
        if not _num_without_cudnn:
            _cudnn_was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _num_without_cudnn += 1
    try:
        yield
    finally:
        with _CUDNN_SWITCH:
            _num_without_cudnn -= 1
            if not _num_without_cudnn:
                torch.backends.cuda.enable_cudnn_sdp(_cudnn_was_enabled)
                _CUDNN_SWITCH.notify_all()


@contextmanager
def hold_cudnn_switch() -> Iterator[None]:
    """Make other threads wait to turn cuDNN attention off until the end of a `with` statement.

    Otherwise, a recording could contain other attention kernels than those that it was prepared for.
    """
    with _CUDNN_SWITCH:
        _CUDNN_SWITCH.wait_for(lambda: not _num_without_cudnn)
        yield


def is_compiled(model: nn.Module) -> bool:
    """Return whether `compile()` was called on `model` or one of its modules."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def is_readable(values: torch.Tensor) -> bool:
    """Return whether the values of a tensor can be read.

    They cannot be read while compiling or recording a CUDA graph. Tensors on the meta device and fake tensors have no
    values.
    """
    is_traced = torch.compiler.is_compiling() or (values.is_cuda and torch.cuda.is_current_stream_capturing())
    return not (is_traced or values.is_meta or isinstance(values, FakeTensor))


def has_padding(mask: torch.Tensor | None) -> bool:
    """Return whether a mask (batch, n) marks padding. If its values cannot be read, any mask counts."""
    return mask is not None and (not is_readable(mask) or not mask.all())


def is_dispatched(model: nn.Module) -> bool:
    """Return whether Accelerate replaced `forward` of a module. A copy of it would still run the original module."""
    return any("forward" in vars(module) for module in model.modules())


def inference_method(method: Callable) -> Callable:
    """Decorate a method of a model so that it runs without gradients and in evaluation mode.

    In training mode, dropout would make results random, and gradient checkpointing would disable the cache.
    """

    @functools.wraps(method)
    def wrapper(self: nn.Module, *arguments: object, **options: object) -> object:
        weight = next(self.parameters())
        if weight.is_cpu and weight.dtype == torch.bfloat16 and not torch.cpu._is_avx512_bf16_supported():
            logger.warning_once(
                "The model is in bfloat16, but this CPU has no bfloat16 instructions. The model runs several times "
                "slower than in float32. Load the model with dtype=torch.float32."
            )
        with torch.no_grad(), evaluation_mode(self):
            return method(self, *arguments, **options)

    return wrapper


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode in a `with` statement. The last thread restores the mode of every submodule."""
    with _LOCK:
        count, modes = _MODES.get(model, (0, {module: module.training for module in model.modules()}))
        _MODES[model] = count + 1, modes
        model.eval()
    try:
        yield
    finally:
        with _LOCK:
            count, _ = _MODES.pop(model)
            if count > 1:
                _MODES[model] = count - 1, modes
            for module, was_training in modes.items() if count == 1 else ():
                module.training = was_training
