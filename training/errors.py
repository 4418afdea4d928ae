# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""How a command says that it cannot do what it was told."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def errors_in_a_line(*kinds: type[Exception]) -> Iterator[None]:
    """
    Around a command: wrong input ends it with `error: ...` and the exit status 1 instead of a traceback.

    Most of what is wrong all processes find. The first says it; before they know of each other, one of each machine.

    Args:
        kinds: what is no fault of the program, such as errors of a network; unless given, `ValueError` and `OSError`.
    """
    no_faults = kinds or (ValueError, OSError)
    try:
        yield
    except no_faults as error:
        sys.exit(1 if is_said_by_another() else f"error: {error}")


def is_said_by_another() -> bool:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return os.environ.get("LOCAL_RANK", "0") != "0"
    try:
        return torch.distributed.distributed_c10d._get_default_store().add("errors", 1) > 1
    except RuntimeError:  # where the store was, the process that said it has left
        return True
