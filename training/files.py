# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Files and folders that appear whole or not at all, and files of JSON that are what they should be."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """
    A temporary path in the folder of `path`, which replaces `path` when the block ends well.

    Whoever reads `path` sees the old content or the new, never a part of it, even after a power cut or `kill -9`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """As `whole_file`, for a folder. An older folder at `path` goes only when the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed process left
    temporary.mkdir()
    try:
        yield temporary
        for inner in (*temporary.rglob("*"), temporary):
            _sync(inner)
        if path.exists():  # A folder cannot be renamed onto another: for a moment there is none, but never half of one.
            shutil.rmtree(path)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_incomplete(folder: Path) -> None:
    """Removes what processes that were killed while writing left in `folder`."""
    for path in folder.glob(".*.incomplete"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_text(path: Path, text: str) -> None:
    """A file of text, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """A file of results: numbers, strings, lists and dictionaries of them."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path, wanted: Sequence[str], writer: str) -> dict[str, Any]:
    """
    The content of a JSON file.

    Args:
        wanted: keys that it must have.
        writer: the command that writes such files.

    Raises:
        ValueError: If the file is not what `writer` writes.
        OSError: If it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}. Give one that {writer} wrote.") from error
    missing = [key for key in wanted if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: it was not written by {writer}.")
    return content


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.incomplete")


def _sync(path: Path) -> None:
    """Asks the operating system to put a file, or the names in a folder, on the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
