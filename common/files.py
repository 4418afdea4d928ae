# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Files and folders that appear complete or not at all, and checked JSON files."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """
    Yield a temporary path beside `path`, and rename it to `path` when the block ends without an error.

    A reader of `path` sees the old content or the new one, never a part of it, even after a power cut or `kill -9`.
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
def atomic_folder(path: Path) -> Iterator[Path]:
    """Do the same as `atomic_file` for a folder. An older folder at `path` is removed once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(path)
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
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
    """Remove the temporary files and folders of processes that were killed while writing to `folder`."""
    for path in folder.glob(".*.incomplete"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_empty_folder(path: Path) -> None:
    """Raise a `ValueError` if `path` exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is not an empty folder: remove it, or name another one.")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write numbers, strings, paths, lists and dictionaries to a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1, default=os.fspath) + "\n")


def read_json(path: Path, wanted: Sequence[str], writer: str) -> dict[str, Any]:
    """
    Return the content of a JSON file.

    Args:
        path: The file.
        wanted: Keys that it must have.
        writer: The command that writes such files, for errors.

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
    """Have the operating system write a file, or the names in a folder, to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
