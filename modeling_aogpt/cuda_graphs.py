# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
CUDA graphs: generation on a GPU in which the GPU rarely waits for the CPU.

A step of a generation consists of hundreds of short operations. The CPU takes longer to launch them one by one than the
GPU takes to run them. A CUDA graph is a recording of operations, which the CPU launches all at once. A decoding state
records its forward passes, and a sampler its draws of tokens.
"""

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from transformers.utils import logging

from .devices import is_compiled, is_dispatched

logger = logging.get_logger(__name__)

_LOCK = Lock()  # one thread records at a time

# Arguments of a recorded function, their shapes, and its result.
Arguments = tuple[torch.Tensor | None, ...]
Shapes = tuple[torch.Size | None, ...]
Result = TypeVar("Result", torch.Tensor, tuple[torch.Tensor, ...])


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


class Place(NamedTuple):
    """Memory pool of recordings, and the stream of operations on which they are made."""

    pool: tuple[int, int]
    stream: torch.cuda.Stream


class Recording:
    """
    CUDA graph of `function(*arguments)`.

    The graph reads its arguments from, and writes its result to, fixed addresses. Recordings with the same `place`
    share memory for intermediate results.
    """

    def __init__(self, function: Callable[..., Result], arguments: Arguments, place: Place) -> None:
        self.arguments = tuple(None if values is None else values.clone() for values in arguments)
        self.graph = torch.cuda.CUDAGraph()
        # In the mode thread_local, other threads may use the GPU while this thread records.
        options = {"pool": place.pool, "stream": place.stream, "capture_error_mode": "thread_local"}
        with _LOCK, torch.cuda.device(place.stream.device), torch.cuda.graph(self.graph, **options):
            self.result = function(*self.arguments)

    def replay(self, arguments: Arguments) -> Any:
        """Return the result for `arguments`, which have the shapes of the recording. The next replay overwrites it."""
        for recorded, values in zip(self.arguments, arguments, strict=True):
            if recorded is not None:
                recorded.copy_(values)
        self.graph.replay()
        return self.result


def make_place(arguments: Arguments) -> Place:
    """Return a new place on the device of the arguments."""
    device = next(values.device for values in arguments if values is not None)
    return Place(torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))


class Recordings:
    """
    Recordings of a function of tensors on a GPU, one for each combination of argument shapes.

    The first `num_first_calls` calls with the same shapes only run the function. There must be at least one, because
    operations may prepare themselves in their first call. The next call makes a recording, which this and all later
    calls replay.
    """

    def __init__(self, num_first_calls: int = 1) -> None:
        self._num_first_calls = num_first_calls
        self._num_calls: Counter[Shapes] = Counter()
        self._recordings: dict[Shapes, Recording] = {}
        self._place: Place | None = None
        self._has_failed = False

    def call(self, function: Callable[..., Result], *arguments: torch.Tensor | None) -> Result:
        """
        Return `function(*arguments)`. The next call, with any shapes, may overwrite the result.

        The function must be the same in every call. It must not wait for the GPU. Apart from its arguments, it must use
        the same memory in every call.
        """
        shapes = tuple(None if values is None else values.shape for values in arguments)
        if self._has_failed or self._num_calls[shapes] < self._num_first_calls:
            self._num_calls[shapes] += 1
            return function(*arguments)
        if shapes not in self._recordings:
            try:
                self._place = self._place or make_place(arguments)
                self._recordings[shapes] = Recording(function, arguments, self._place)
            except RuntimeError as error:
                self._has_failed = True
                logger.warning_once(
                    "Operations cannot be recorded as CUDA graphs, so they take longer. Results are the same. "
                    f"(Cause: {error})"
                )
                return function(*arguments)
        return self._recordings[shapes].replay(arguments)
