# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Helpers for devices: copies that do not block, attention kernels on GPUs, and linear layers that are fast on CPUs.

In inference on a CPU, `Linear` calls oneDNN instead of PyTorch's default, MKL. A generation with many forward passes
also packs the weights, that is, copies them into oneDNN's own memory layout. Both apply to float32, and to bfloat16 if
the CPU has instructions for it. In bfloat16, attention also avoids a slow kernel for single queries.
`torch.backends.mkldnn.flags(enabled=False)` turns all of this off. Results with and without it differ only by rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers.integrations import sdpa_attention
from transformers.utils import logging

logger = logging.get_logger(__name__)

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")

# On a GPU, PyTorch copies a mask in every layer unless its rows begin at multiples of this number of elements.
MASK_ALIGNMENT = 8

# For fewer keys, repeating a query (see `avoid_single_query`) takes more time than it saves.
MIN_KEYS_TO_REPEAT = 64
# Whether this version of Transformers stacks the queries of a group in attention with a mask. Version 5.10 does not.
STACKS_QUERIES = hasattr(sdpa_attention, "pack_gqa")


def rows_per_head_call(most: int, num_ids: int) -> int:
    """Return how many rows of logits may be in memory at once: `most`, or fewer for vocabularies above GPT-2's."""
    return max(1, min(most, most * 50304 // num_ids))


def to_device(values: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """
    Copy values to a device.

    A copy from the CPU to an accelerator does not wait for work that is queued there. A copy to the CPU waits until the
    values are computed.
    """
    return values.to(device, non_blocking=values.is_cpu)


def execution_device(module: nn.Module, default: torch.device) -> torch.device:
    """Return the device on which Accelerate runs `module`, or `default` if the model has no `device_map`."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return default if device is None else torch.device(device)


def draw_uniform(
    *size: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> torch.Tensor:
    """
    Draw float64 numbers uniformly from [0, 1), and move them to `device`.

    The numbers are drawn on the device of `generator`, or on the CPU without a generator. The same seed
    of a CPU generator therefore gives the same orders and tokens on every device.
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


def prepare_mask(mask: torch.BoolTensor, dtype: torch.dtype) -> torch.Tensor:
    """
    Return an attention mask (..., rows, slots) in the form that is fastest on its device.

    On an accelerator, PyTorch adds 0 to attention scores where `mask` is True, and minus infinity elsewhere. It would
    compute these numbers in every layer, so this function computes them once. `dtype` must be that of attention
    queries. On a CPU, where this saves hardly any time, and while compiling, the mask is returned unchanged.
    """
    if mask.is_cpu or torch.compiler.is_compiling():
        return mask
    num_slots = mask.shape[-1]
    shape = *mask.shape[:-1], num_slots + -num_slots % MASK_ALIGNMENT
    return mask.new_full(shape, float("-inf"), dtype=dtype)[..., :num_slots].masked_fill_(mask, 0.0)


# Whether `without_cudnn_attention` does nothing in this thread.
_ALLOWS_CUDNN: ContextVar[bool] = ContextVar("_ALLOWS_CUDNN", default=False)


@contextmanager
def allow_cudnn_attention(is_allowed: bool = True) -> Iterator[None]:
    """
    Keep cuDNN attention on within a `with` statement: there, [`without_cudnn_attention`] does nothing.

    This is faster for operations that are repeated many times with the same shapes. In bfloat16 on an NVIDIA H200, with
    an attention mask, 1024 slots and 12 heads of 64, one row of one sequence takes 6.5 instead of 60 microseconds, and
    one row of each of 32 sequences takes 32 instead of 87.
    """
    token = _ALLOWS_CUDNN.set(is_allowed)
    try:
        yield
    finally:
        _ALLOWS_CUDNN.reset(token)


# PyTorch's switch for cuDNN attention applies to all threads of a process. The first thread that enters
# `without_cudnn_attention` turns cuDNN attention off, and the last thread that leaves it restores the switch.
_CUDNN_LOCK = Lock()
_num_without_cudnn, _cudnn_was_enabled = 0, True


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """
    Turn off cuDNN attention on GPUs within a `with` statement, because it is slow for shapes that occur only once.

    cuDNN makes an execution plan for every new shape, and making the plan takes longer than a forward pass. In
    addition, gradients of cuDNN attention with an attention mask can be NaN (PyTorch issue 196678).
    """
    global _num_without_cudnn, _cudnn_was_enabled
    if device.type == "cpu" or _ALLOWS_CUDNN.get():
        yield
        return
    with _CUDNN_LOCK:
        if not _num_without_cudnn:
            _cudnn_was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _num_without_cudnn += 1
    try:
        yield
    finally:
        with _CUDNN_LOCK:
            _num_without_cudnn -= 1
            if not _num_without_cudnn:
                torch.backends.cuda.enable_cudnn_sdp(_cudnn_was_enabled)


# --------------------------------------------------------------------------------------------------- linear on a CPU


class Linear(nn.Linear):
    """
    `nn.Linear` that uses oneDNN in inference on a CPU.

    Decoding multiplies few rows by large weights. For 8 to 63 rows, oneDNN takes 0.5 to 0.7 of MKL's time (2 cores of
    an AMD EPYC). PyTorch has no public function for this operator of oneDNN, but `torch.compile`
    uses it too. Packed weights reduce oneDNN's time further. In float32, packed weights take 50 % of the time of
    unpacked weights for 4 rows, 75 % for 16 rows, 95 % for many rows, and 100 % for a single row. In bfloat16, they
    also take 50 % for a single row.

    Models are made with `nn.Linear`, because Transformers quantizes only modules of exactly this class. `use_onednn`
    then changes the class.
    """

    packed_weight: torch.Tensor | None = None  # the weight in oneDNN's layout, set by `pack_weights`

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return `hidden_states @ weight.T + bias`."""
        if not uses_onednn(hidden_states, self.weight, self.bias):
            return F.linear(hidden_states, self.weight, self.bias)
        num_rows = hidden_states.shape[:-1].numel()
        is_faster = self.packed_weight is not None and gains_from_packing(self.weight.dtype, num_rows)
        weight = self.packed_weight if is_faster else self.weight
        return torch.ops.mkldnn._linear_pointwise(hidden_states, weight, self.bias, "none", [], "")


def use_onednn(model: nn.Module) -> None:
    """Change the class of all linear layers on a CPU from `nn.Linear` to `Linear`."""
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.is_cpu:
            layer.__class__ = Linear


def uses_onednn(hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Return whether oneDNN can compute the product of plain CPU tensors, without autograd or autocast."""
    return (
        type(weight) is nn.Parameter
        and hidden_states.dtype == weight.dtype
        and hidden_states.numel() > 0
        and (bias is None or bias.is_contiguous())  # oneDNN ignores the strides of a bias
        and is_plain_inference(hidden_states, weight, bias)
    )


def is_plain_inference(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Return whether to use faster operations that work only on a CPU, without autograd and autocast."""
    return (
        HAS_ONEDNN
        and not torch.compiler.is_compiling()  # must precede `has_fast_products`, which torch.compile cannot trace
        and first.device.type == "cpu"
        and has_fast_products(first.dtype)
        and type(first) is torch.Tensor
        and not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (first, *others)))
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.enabled
        # oneDNN's operator has no forward-mode derivative, and dispatch modes such as FLOP counters do not support it.
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._len_torch_dispatch_stack()
    )


def has_fast_products(dtype: torch.dtype) -> bool:
    """Return whether oneDNN is fast in `dtype`: float32, or bfloat16 if the CPU has instructions for it."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported())


def gains_from_packing(dtype: torch.dtype, num_rows: int) -> bool:
    """Return whether oneDNN multiplies `num_rows` rows faster if the weights are packed."""
    return has_fast_products(dtype) and num_rows >= (1 if dtype == torch.bfloat16 else 2)


def avoid_single_query(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Return attention queries and a mask for which PyTorch's attention is fast on a CPU, even for a single query.

    In bfloat16, PyTorch 2.13 takes for two queries 0.35 to 0.5 of the time that it takes for one (256 to 1000 keys, 12
    heads of 64, one core of an AMD EPYC). A single query is therefore repeated. In grouped-query attention,
    Transformers stacks the queries of a group instead, but only if there is a mask. This takes 0.1 to 0.25 of the time.
    If the installed version of Transformers does not stack queries, grouped queries are returned unchanged.
    """
    # Check sizes last: each outcome of a size check makes `torch.compile` compile another graph.
    is_slow = query.dtype == torch.bfloat16 and is_plain_inference(query, key)
    if not (is_slow and query.shape[2] == 1 and key.shape[2] >= MIN_KEYS_TO_REPEAT):
        return query, attention_mask
    is_grouped = query.shape[1] != key.shape[1]
    if is_grouped and not STACKS_QUERIES:
        return query, attention_mask
    if attention_mask is None:  # without a mask, their attention would be causal
        attention_mask = torch.ones(1, 1, 1, key.shape[2], dtype=torch.bool)
    return (query if is_grouped else query.repeat(1, 1, 2, 1)), attention_mask


def pack_weights(model: nn.Module) -> nn.Module:
    """
    Return a copy of `model` whose linear layers hold their weights a second time, in oneDNN's layout.

    The copy shares all parameters with `model`. If a parameter changes later, the packed weights do not change. The
    copy should therefore be used for one generation only. Without oneDNN, or if Accelerate manages the weights, the
    function returns `model` itself.
    """
    if not (HAS_ONEDNN and torch.backends.mkldnn.enabled) or is_dispatched(model):
        return model
    model = _copy_modules(model)
    for layer in model.modules():
        is_plain = isinstance(layer, Linear) and type(layer.weight) is nn.Parameter and layer.weight.is_cpu
        if is_plain and has_fast_products(layer.weight.dtype):
            layer.packed_weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    return model


def _copy_modules(module: nn.Module) -> nn.Module:
    """Return a copy of `module` and its submodules that shares parameters, buffers, hooks and configuration with it."""
    copied = object.__new__(type(module))  # `copy.copy` does not support parametrized modules
    copied.__dict__ = module.__dict__.copy()
    copied._modules = {name: None if child is None else _copy_modules(child) for name, child in module._modules.items()}
    return copied


def is_compiled(model: nn.Module) -> bool:
    """Return whether `compile()` was called on `model` or one of its modules."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def is_readable(values: torch.Tensor) -> bool:
    """
    Return whether the values of a tensor can be read.

    They cannot be read while compiling or recording a CUDA graph. Tensors on the meta device and fake tensors have no
    values.
    """
    is_traced = torch.compiler.is_compiling() or (values.is_cuda and torch.cuda.is_current_stream_capturing())
    return not (is_traced or values.is_meta or isinstance(values, FakeTensor))


def is_dispatched(model: nn.Module) -> bool:
    """Return whether Accelerate replaced the `forward` of a module. A copy would still run the original module."""
    return any("forward" in vars(module) for module in model.modules())


def warn_if_slow(model: nn.Module) -> None:
    """Warn once if `model` is in bfloat16 on a CPU that has no bfloat16 instructions."""
    weight = next(model.parameters())
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and not torch.cpu._is_avx512_bf16_supported():
        logger.warning_once(
            "The model is in bfloat16, but this CPU has no bfloat16 instructions. The model runs several times slower "
            "than in float32. Load the model with dtype=torch.float32."
        )
