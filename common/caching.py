# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Versions of code, so that cached results are not used after the code or a library has changed."""

import hashlib
import inspect
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = ("datasets", "tokenizers", "torch", "transformers")


@dataclass(frozen=True)
class Versioned:
    """Function that `datasets` identifies in its cache by its name and a version.

    By default, `datasets` identifies an imported function only by its name. It would reuse results of older code.
    """

    function: Callable
    version: str

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function."""
        return self.function(*arguments, **options)


def versioned(function: Callable, *modules: ModuleType) -> Versioned:
    """Return `function` with a version: the hash of the code in its folder and in the folders of `modules`.

    The hash includes the versions of Python and libraries. The function must not use modules of other folders.
    """
    return Versioned(function, code_version(Path(inspect.getfile(part)).parent for part in (function, *modules)))


def code_version(folders: Iterable[Path]) -> str:
    """Return a hash of the modules in `folders`, and of the versions of Python and libraries."""
    versions = [platform.python_version(), *map(version, LIBRARIES)]
    digest = hashlib.sha256(repr(versions).encode())
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
