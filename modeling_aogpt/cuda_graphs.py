# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
CUDA graphs: forward passes on a GPU that need not wait for the CPU.

A decoder's pass of few rows consists of hundreds of short operations. The CPU takes longer to launch them one by one
than the GPU takes to run them. A CUDA graph is a recording of these operations, which the CPU launches all at once.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.utils import logging

from .devices import is_compiled, is_dispatched

logger = logging.get_logger(__name__)

# Arguments of a recorded function.
Arguments = tuple[torch.Tensor | None, ...]


def can_record(model: nn.Module, device: torch.device) -> bool:
    """
    Return whether forward passes of `model` on `device` can be recorded.

    A recording does not run Python code, such as hooks. It needs weights that are plain tensors on one device, because
    operations of quantized weights may wait for the GPU. Autocast may free its copies of the weights.
    """
    return (
        device.type == "cuda"
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
        and not torch._C._len_torch_dispatch_stack()  # dispatch modes, such as FLOP counters
        and not is_compiled(model)
        and not is_dispatched(model)
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        and all(type(weight) is nn.Parameter and weight.device == device for weight in model.parameters())
    )


class Recording:
    """
    CUDA graph of `function(*arguments)`.

    The graph reads its arguments from, and writes its result to, fixed places in memory. Recordings with the same
    `pool` share memory for intermediate results.
    """

    def __init__(self, function: Callable[..., torch.Tensor], arguments: Arguments, pool: tuple[int, int]) -> None:
        self.arguments = tuple(None if values is None else values.clone() for values in arguments)
        self.graph = torch.cuda.CUDAGraph()
        # In the mode thread_local, other threads may use the GPU while this thread records.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.result = function(*self.arguments)

    def replay(self, arguments: Arguments) -> torch.Tensor:
        """Return the result for `arguments`, which have the shapes of the recording. The next replay overwrites it."""
        for place, values in zip(self.arguments, arguments, strict=True):
            if place is not None:
                place.copy_(values)
        self.graph.replay()
        return self.result


class Recordings:
    """
    Recordings of a function of tensors on a GPU, one for each combination of argument shapes.

    The first call with new shapes only runs the function, because operations may prepare themselves in their first
    call. The second call makes a recording, which this and all later calls replay.
    """

    def __init__(self) -> None:
        self._recordings: dict[tuple[torch.Size | None, ...], Recording | None] = {}  # None after the first call
        self._pool: tuple[int, int] | None = None
        self._has_failed = False

    def call(self, function: Callable[..., torch.Tensor], *arguments: torch.Tensor | None) -> torch.Tensor:
        """
        Return `function(*arguments)`. The next call, with any shapes, may overwrite the result.

        The function must be the same in every call. It must not wait for the GPU. Apart from its arguments, it must use
        the same memory in every call.
        """
        shapes = tuple(None if values is None else values.shape for values in arguments)
        if self._has_failed or shapes not in self._recordings:
            self._recordings[shapes] = None
            return function(*arguments)
        if self._recordings[shapes] is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                self._recordings[shapes] = Recording(function, arguments, self._pool)
            except RuntimeError as error:
                self._has_failed = True
                logger.warning_once(
                    "Forward passes cannot be recorded as CUDA graphs, so they take longer. Results are the same. "
                    f"(Cause: {error})"
                )
                return function(*arguments)
        return self._recordings[shapes].replay(arguments)
