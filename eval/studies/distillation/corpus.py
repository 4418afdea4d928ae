# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""A twentieth of the training files of the corpus `python-stdlib`, with all of its held-out files."""

from collections.abc import Iterator

from common.corpora import python_stdlib
from common.data_arguments import DataArguments
from common.splitting import is_held_out, sha256

SMALLEST = 20  # one of this number of training files is kept


def few_files() -> Iterator[tuple[str, str]]:
    """Yield pairs (path, text)."""
    for path, text in python_stdlib():
        key = sha256(path)
        if is_held_out(key, DataArguments.validation_fraction) or key[-1] % SMALLEST == 0:
            yield path, text
