# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts: options, errors in one line, and progress bars."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, NoReturn

import torch
from tqdm import tqdm
from transformers import HfArgumentParser

# ---------------------------------------------------------------------------------------------------------- options


def option(default: Any, help: str) -> Any:
    """Return a dataclass field that `Parser` shows with a help text. A list as default is copied."""
    metadata = {"help": help}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_at_least(least: int, settings: object, *names: str) -> None:
    """Raise a `ValueError` for the first of the named settings that is given and below `least`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}.")


class Parser(HfArgumentParser):
    """An `HfArgumentParser` that reports an error in one line, without the usage, and takes no abbreviations."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (`{self.prog} --help` lists what there is)\n")

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Return the dataclasses and, if there are other arguments, a namespace of these."""
        *parsed, unknown = self.parse_args_into_dataclasses(argv, return_remaining_strings=True)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return tuple(parsed)


# ----------------------------------------------------------------------------------------------------------- errors


@contextmanager
def one_line_errors(*kinds: type[Exception]) -> Iterator[None]:
    """
    End a command with `error: ...` and exit status 1 instead of a traceback. Also a decorator.

    Several processes often find the same error. The first one reports it; before the processes are connected, the first
    one of each machine.

    Args:
        kinds: Exceptions that are not faults of the program, such as network errors. Defaults to `ValueError` and
            `OSError`.
    """
    reported = kinds or (ValueError, OSError)
    try:
        yield
    except reported as error:
        sys.exit(1 if _is_reported_by_another_process() else f"error: {error}")


def _is_reported_by_another_process() -> bool:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return os.environ.get("LOCAL_RANK", "0") != "0"
    try:
        return torch.distributed.distributed_c10d._get_default_store().add("errors", 1) > 1
    except RuntimeError:  # the process that holds the store has reported the error and left
        return True


# ----------------------------------------------------------------------------------------------------- progress bars


def progress_bar(*arguments: Any, **options: Any) -> tqdm:
    """Return a `tqdm` bar that is updated rarely if it is written to a file."""
    return tqdm(*arguments, mininterval=0.5 if sys.stderr.isatty() else 30, **options)
