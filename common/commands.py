# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Command lines of the scripts: options, one-line error messages, and progress bars."""

import importlib
import io
import operator
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import HfArgumentParser

from aogpt import cli

BOUNDS = {"least": ("at least", operator.ge), "above": ("above", operator.gt), "below": ("below", operator.lt)}


def option(default: Any, help: str, needs: str = "", **bounds: float) -> Any:
    """Return a dataclass field for a subclass of `Options`. `bounds` has keys of `BOUNDS`.

    The field has an effect only if the option `needs` is set or, for `needs="NAME=VALUE"`, has this value.
    """
    metadata = {"help": help, "needs": needs, **bounds}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Options:
    """Base class for the options of a command. Subclasses are dataclasses whose fields are made with `option`."""

    def __post_init__(self) -> None:
        """Raise a `ValueError` if an option is out of bounds (in a list, any item), or is set but has no effect."""
        for item in fields(self):
            given = getattr(self, item.name)
            for kind, (words, is_within) in BOUNDS.items():
                bound = item.metadata.get(kind)
                for value in given if isinstance(given, list) else [given]:
                    if bound is not None and value is not None and not is_within(value, bound):
                        raise ValueError(f"`{item.name}` must be {words} {bound}, but is {value}.")
            if needs := item.metadata.get("needs"):
                default = item.default_factory() if item.default is MISSING else item.default
                name, _, value = needs.partition("=")
                is_met = getattr(self, name) == value if value else getattr(self, name)
                if given != default and not is_met:
                    raise ValueError(
                        f"`{item.name}` has no effect without `{needs}`. Set both, or remove `{item.name}`."
                    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "Options":
        """Return the options with the saved settings of a run. Settings that are not fields are ignored."""
        return cls(**{item.name: settings[item.name] for item in fields(cls) if item.name in settings})


class Parser(cli.Parser, HfArgumentParser):
    """`HfArgumentParser` that prints errors in one line and does not accept abbreviated options."""

    def add_argument(self, *arguments: Any, **options: Any) -> Any:
        """Add an argument. A `%` in `help` needs no escaping. The checks of `Options` are ignored here."""
        options = {key: value for key, value in options.items() if key not in (*BOUNDS, "needs")}
        options["help"] = options.get("help", "").replace("%", "%%")
        return super().add_argument(*arguments, **options)

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Parse `argv`. Return the dataclasses and, if `add_argument` was called, a namespace of added arguments."""
        names = [text.partition("=")[0] for text in argv if text.startswith("--")]
        lists = [name for name, action in self._option_string_actions.items() if action.nargs in ("+", "*")]
        if repeated := [name for name in lists if names.count(name) > 1]:  # the first values would be lost
            self.error(f"{repeated[0]} is given twice. Give it once, with all its values.")
        *parsed, unknown = self.parse_args_into_dataclasses(argv, return_remaining_strings=True)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return tuple(parsed)


def command_line(script: str, argv: Sequence[str]) -> str:
    """Return the command that runs `script` (a `__file__` of this repository) with `argv`, for a shell in its root."""
    path = Path(script).resolve().relative_to(Path(__file__).resolve().parents[1])
    return shlex.join(["python", path.as_posix(), *argv])


def import_function(option: str, name: str) -> Callable:
    """Return the function MODULE:FUNCTION. Raise a `ValueError` that names `option` if it cannot be imported."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The {option} {name!r} cannot be imported ({error}). A {option} must be MODULE:FUNCTION. Check "
            "both names, or add the module's folder to the environment variable PYTHONPATH."
        ) from error


@contextmanager
def one_line_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Exit with `error: MESSAGE` and status 1 for an exception of `kinds`, by default `ValueError` and `OSError`.

    Before torch.distributed is initialized, all processes raise the same errors. Process 0 of each machine prints them.
    """
    reported = kinds or (ValueError, OSError)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 lacks some characters
    try:
        yield
    except reported as error:
        is_copy = os.environ.get("LOCAL_RANK", "0") != "0" and not torch.distributed.is_initialized()
        message = str(error)
        if "\nOriginal Traceback" in message:  # of a data-loader worker
            message = message.rpartition(f"\n{type(error).__name__}: ")[2]
        sys.exit(1 if is_copy else f"error: {message}")


def progress_bar(*arguments: Any, **options: Any) -> tqdm:
    """Return a `tqdm` bar. If standard error is not a terminal, the bar is updated only every 30 seconds."""
    return tqdm(*arguments, mininterval=0.5 if sys.stderr.isatty() else 30, **options)
