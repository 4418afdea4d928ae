# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts: options, errors in one line, and progress bars."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

import torch
from tqdm import tqdm
from transformers import HfArgumentParser

# ---------------------------------------------------------------------------------------------------------- options


def option(default: Any, help: str, least: float | None = None, below: float | None = None) -> Any:
    """
    Return a dataclass field for `Options`.

    Args:
        default: The default. A list is copied.
        help: A text for `--help`.
        least: The smallest value that is allowed.
        below: A value that is too large.
    """
    metadata = {"help": help, "least": least, "below": below}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Options:
    """Options of a command: a base class for dataclasses whose fields are made by `option`."""

    def __post_init__(self) -> None:
        self.check_bounds()

    def check_bounds(self) -> None:
        """Raise a `ValueError` for a number, or a number in a list, that is out of its bounds."""
        for item in fields(self):
            least, below = item.metadata.get("least"), item.metadata.get("below")
            given = getattr(self, item.name)
            for value in given if isinstance(given, list) else [given]:
                if least is not None and value is not None and not value >= least:
                    raise ValueError(f"{item.name} is {value}; it must be at least {least}.")
                if below is not None and value is not None and not value < below:
                    raise ValueError(f"{item.name} is {value}; it must be below {below}.")


class Parser(HfArgumentParser):
    """An `HfArgumentParser` that reports an error in one line, without the usage, and takes no abbreviations."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)

    def add_argument(self, *arguments: Any, least: Any = None, below: Any = None, **options: Any) -> Any:
        return super().add_argument(*arguments, **options)  # `Options` checks bounds

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
