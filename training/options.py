# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What a command can be told: the fields of dataclasses."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NoReturn

from transformers import HfArgumentParser


def option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def check_at_least(least: int, settings: object, *names: str) -> None:
    """Raises a `ValueError` for the first of these settings that is given and lower."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}.")


class Parser(HfArgumentParser):
    """As its base class, but what is wrong takes one line, not a usage of a hundred options; nothing is abbreviated."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (`{self.prog} --help` lists what there is)\n")

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """The dataclasses and, where there are other arguments, a namespace of these."""
        *parsed, unknown = self.parse_args_into_dataclasses(argv, return_remaining_strings=True)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return tuple(parsed)
