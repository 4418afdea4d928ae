# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Recordings of forward passes and draws of tokens as CUDA graphs, which make generation on a GPU faster.

A step of a generation consists of hundreds of short operations. The CPU takes longer to launch them one by one than the
GPU takes to run them. A CUDA graph is a recording of operations, which the CPU launches all at once. A decoding state
records its forward passes, and a sampler its draws of tokens.
"""

import functools
import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import nn
from transformers.utils import logging

from .devices import allow_cudnn_attention, hold_cudnn_switch, is_dispatched, to_device

logger = logging.get_logger(__name__)

# Hooks of this module of Transformers do nothing during a generation. They stay after `output_hidden_states=True`.
IDLE_HOOKS = "transformers.utils.output_capturing"

_LOCK = Lock()  # one thread records at a time
_FAILED: WeakSet[nn.Module] = WeakSet()  # models that cannot be recorded

# Arguments of a recorded function, the key of a recording (see `Recordings`), and the result.
Arguments = tuple[torch.Tensor | None, ...]
Key = tuple[Hashable, ...]
Result = TypeVar("Result", torch.Tensor, tuple[torch.Tensor, ...])


def can_record(model: nn.Module, device: torch.device) -> bool:
    """Return whether functions of `model` on `device` can be recorded.

    A replay runs no Python code, such as hooks. It reads weights at fixed addresses, but copies that autocast makes can
    move. A recording must not wait for the GPU, but operations of quantized weights may do so. Compiled models are
    recorded, too, unless they record CUDA graphs themselves.
    """
    return (
        device.type == "cuda"
        and torch.version.cuda is not None  # on AMD GPUs, nothing was tested
        and model not in _FAILED
        and not torch.is_autocast_enabled("cuda")
        and not torch.cuda.is_current_stream_capturing()
        and not torch._C._len_torch_dispatch_stack()  # dispatch modes, such as FLOP counters
        and not records_itself(model)
        and not is_dispatched(model)
        and not has_hooks(model)
        and getattr(model.config, "quantization_config", None) is None
        and all(type(weight) is nn.Parameter and weight.device == device for weight in model.parameters())
    )


def has_hooks(model: nn.Module) -> bool:
    """Return whether a module of `model` has hooks that can have an effect in a forward pass."""
    for module in model.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(getattr(hook, "__module__", None) != IDLE_HOOKS for hook in hooks):
            return True
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


def records_itself(model: nn.Module) -> bool:
    """Return whether a module of `model` was compiled with CUDA graphs, as with `mode="reduce-overhead"`."""
    compiled = (module._compiled_call_impl for module in model.modules())
    configs = (getattr(call, "get_compiler_config", lambda: None)() for call in compiled)
    return any(config is not None and config.get("triton.cudagraphs") for config in configs)


@functools.cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all functions of a device are recorded. More streams would need more memory."""
    return torch.cuda.Stream(device)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector within a `with` statement.

    A recording fails if the collector frees another CUDA graph meanwhile, such as one that an exception kept alive.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Recording:
    """CUDA graph of `function(*arguments)` on `device`.

    The arguments and the result have fixed memory addresses. A replay copies new arguments to these addresses, and
    overwrites the previous result. Recordings with the same memory `pool` share memory for intermediate results.

    To make a recording, PyTorch waits for the GPU and empties its memory cache, because memory in the cache cannot
    become part of the pool later. A generation makes few recordings, so this takes little of its time.
    """

    def __init__(
        self, function: Callable[..., Result], arguments: Arguments, device: torch.device, pool: tuple[int, int]
    ) -> None:
        self.arguments = tuple(None if values is None else values.to(device, copy=True) for values in arguments)
        self.graph = torch.cuda.CUDAGraph()
        stream = recording_stream(device)
        # In the mode thread_local, other threads may use the GPU while this thread records. If recording fails,
        # `torch.cuda.graph` does not restore the stream, but `torch.cuda.stream` does.
        options = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        with _LOCK, pause_garbage_collection(), torch.cuda.stream(stream), torch.cuda.graph(self.graph, **options):
            self.result = function(*self.arguments)

    def replay(self, arguments: Arguments) -> Any:
        """Return the result for `arguments`, which have the shapes of the recording. The next replay overwrites it."""
        for recorded, values in zip(self.arguments, arguments, strict=True):
            if recorded is not None:
                recorded.copy_(values, non_blocking=True)
        self.graph.replay()
        return self.result


class Recordings:
    """Recordings of functions of tensors on a GPU, one for each function, constant and combination of argument shapes.

    The first `num_first_calls` calls with the same key, at least one, only run the function. The next call makes a
    recording, which this and all later calls replay. With `use_cudnn`, recorded functions may use cuDNN attention.

    If a recording fails, `has_failed` becomes True, and no further recordings are made. If the cause is not a lack of
    memory, [`can_record`] returns False for `model` from then on.
    """

    def __init__(self, model: nn.Module, device: torch.device, num_first_calls: int = 1) -> None:
        self.has_failed = self.use_cudnn = False
        self._model, self._device, self._num_first_calls = model, device, num_first_calls
        self._num_calls: Counter[Key] = Counter()
        self._recordings: dict[Key, Recording] = {}
        self._pool: tuple[int, int] | None = None

    def call(
        self, function: Callable[..., Result], *arguments: torch.Tensor | None, constant: tuple[Hashable, ...] = ()
    ) -> Result:
        """Run `function(*constant, *arguments)`, if possible as a CUDA graph. The next call may overwrite the result.

        A function must not wait for the GPU. It gets copies of its arguments on the GPU. Everything else that it reads
        or writes must stay at the same memory addresses.
        """
        # With bound methods as keys, this object would refer to itself, and its memory would be freed late.
        names = (getattr(part, "__func__", part) for part in (function, *constant))
        key = *names, *(None if values is None else values.shape for values in arguments)
        if key not in self._recordings and not self.has_failed and self._num_calls[key] >= self._num_first_calls:
            self._record(key, functools.partial(function, *constant), arguments)
        if key in self._recordings:
            return self._recordings[key].replay(arguments)
        self._num_calls[key] += 1
        with allow_cudnn_attention(self.use_cudnn):
            moved = (None if values is None else to_device(values, self._device) for values in arguments)
            return function(*constant, *moved)

    def _record(self, key: Key, function: Callable[..., Result], arguments: Arguments) -> None:
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with allow_cudnn_attention(self.use_cudnn), hold_cudnn_switch():
                self._recordings[key] = Recording(function, arguments, self._device, self._pool)
        except torch.OutOfMemoryError:
            self.has_failed = True
        except RuntimeError as error:
            self.has_failed = True
            _FAILED.add(self._model)
            logger.warning_once(
                f"Recording {type(self._model).__name__} as a CUDA graph failed, so generation is slower. Up to "
                f"rounding, samples stay the same. (Cause: {error})"
            )
