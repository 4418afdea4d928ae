# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A decorator for methods that use a model for inference, and evaluation mode."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import nn

from .devices import warn_if_slow


def inference_method(method: Callable) -> Callable:
    """
    Decorate a method of a model so that it runs without gradients and in evaluation mode.

    In training mode, dropout would make results random, and gradient checkpointing would disable the cache.
    """

    @functools.wraps(method)
    def wrapper(self: nn.Module, *arguments: object, **options: object) -> object:
        warn_if_slow(self)
        with torch.no_grad(), evaluation_mode(self):
            return method(self, *arguments, **options)

    return wrapper


# For each model in `evaluation_mode`: the number of threads in it, and the previous training mode of each module.
_EVALUATED: dict[nn.Module, tuple[int, dict[nn.Module, bool]]] = {}
_EVALUATED_LOCK = Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Thread-safe context manager that switches a model to eval mode and restores the mode of every submodule."""
    with _EVALUATED_LOCK:
        count, modes = _EVALUATED.get(model, (0, None))
        _EVALUATED[model] = count + 1, modes or {module: module.training for module in model.modules()}
        model.eval()
    try:
        yield
    finally:
        with _EVALUATED_LOCK:
            count, modes = _EVALUATED.pop(model)
            if count > 1:
                _EVALUATED[model] = count - 1, modes
            else:
                for module, was_training in modes.items():
                    module.training = was_training
