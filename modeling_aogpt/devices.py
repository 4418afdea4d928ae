# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A model that may live elsewhere than what the CPU draws and counts for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

# PyTorch's switch is the process's, not the thread's: the first in turns cuDNN's attention off, the last out on again.
_LOCK, _num_without_cudnn, _had_cudnn = Lock(), 0, True


def device_of(module: nn.Module, default: torch.device) -> torch.device:
    """Where Accelerate runs a part of a model that it spread over several devices (`device_map`); else `default`."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return default if device is None else torch.device(device)


@contextmanager
def without_cudnn_attention(device: torch.device) -> Iterator[None]:
    """
    Attention by PyTorch's other kernels, for shapes that come once: cuDNN, which comes first on new GPUs, makes a plan
    for each, which takes longer than a pass. Its gradients under a mask have been NaN, too (PyTorch issue 196678).
    """
    global _num_without_cudnn, _had_cudnn
    if device.type == "cpu":
        yield
        return
    with _LOCK:
        if not _num_without_cudnn:
            _had_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _num_without_cudnn += 1
    try:
        yield
    finally:
        with _LOCK:
            _num_without_cudnn -= 1
            if not _num_without_cudnn:
                torch.backends.cuda.enable_cudnn_sdp(_had_cudnn)


def to_device(values: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """
    Values of the CPU on `device`. A plain copy to an accelerator would wait until that has done all it was given before
    (the other way one must: what is read early is not yet there).
    """
    return values.to(device, non_blocking=values.is_cpu)


def draw_uniform(
    *size: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
) -> torch.Tensor:
    """
    Uniform numbers in [0, 1), float64, drawn on the generator's device (the CPU without one) and moved to `device`, so
    that a seed gives the same orders, reveal steps and tokens wherever the model lives.
    """
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"generator={generator!r} is no torch.Generator: torch.Generator().manual_seed(0) makes one.")
    draw_device = "cpu" if generator is None else generator.device
    return to_device(torch.rand(*size, generator=generator, device=draw_device, dtype=torch.float64), device)
