# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A model in evaluation mode for a while, in whatever modes its modules are, and however many threads use it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from torch import nn

# How many are within, and the modes of the modules before the first came.
_INSIDE: dict[nn.Module, tuple[int, dict[nn.Module, bool]]] = {}
_LOCK = Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """`model` is in evaluation mode within, and every module as it was when the last thread has left."""
    with _LOCK:
        count, modes = _INSIDE.get(model, (0, None))
        _INSIDE[model] = count + 1, modes or {module: module.training for module in model.modules()}
        model.eval()
    try:
        yield
    finally:
        with _LOCK:
            count, modes = _INSIDE.pop(model)
            if count > 1:
                _INSIDE[model] = count - 1, modes
            else:
                for module, was_training in modes.items():
                    module.training = was_training
