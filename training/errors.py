# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""How a command says that it cannot do what it was told."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_in_a_line(*kinds: type[Exception]) -> Iterator[None]:
    """
    Around a command: wrong input ends it with `error: ...` and the exit status 1 instead of a traceback.

    Args:
        kinds: what else than `ValueError` and `OSError` is no fault of the program, such as errors of a network.
    """
    try:
        yield
    except (ValueError, OSError, *kinds) as error:
        sys.exit(f"error: {error}")
