# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Files and folders that are written atomically, and JSON files that are checked when read."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError

logger = logging.getLogger(__name__)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`. If the block ends without an error, rename the temporary file to `path`.

    A reader of `path` sees either all of the old or all of the new content, even after a power cut or `kill -9`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`. If the block ends without an error, rename the folder to `path`.

    An old folder at `path` is removed only when the new one is complete.
    """
    path = path.absolute()  # "." has no name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    shutil.rmtree(temporary, ignore_errors=True)  # a process that was killed may have left it
    temporary.mkdir()
    try:
        yield temporary
        publish_folder(temporary, path)
    except SafetensorError as error:  # for instance, because the disk is full
        raise OSError(f"{path} could not be written. Free disk space. (Cause: {error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish_folder(temporary: Path, path: Path) -> None:
    """Flush the complete folder `temporary` to the disk, and rename it to `path`. Remove an old folder at `path`."""
    for inner in (*temporary.rglob("*"), temporary):
        _sync(inner)
    if path.exists():  # os.replace does not replace a folder, so for a moment `path` does not exist
        shutil.rmtree(path)
    os.replace(temporary, path)
    _sync(path.parent)


def remove_atomically(path: Path) -> None:
    """Remove a file or a folder. If the process is killed while it does this, `path` is complete or does not exist."""
    removed = path.replace(temporary_path(path))
    shutil.rmtree(removed) if removed.is_dir() else removed.unlink()


@contextmanager
def make_folder(path: Path) -> Iterator[None]:
    """Create a folder and its parents. If the `with` block raises an error, remove new empty folders."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):  # raised if the folder is not empty
                folder.rmdir()
        raise


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Lock a folder for this process. When the process ends, or is killed, the lock ends.

    Raise a `ValueError` if another process has locked the folder. Only warn if the file system has no locks.
    """
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(f"{path} is in use by another process. Wait for it, or choose another folder.") from error
    except (OSError, NotImplementedError) as error:
        logger.warning("%s cannot be locked. Do not use it in two processes at the same time. (%s)", path, error)
    try:
        yield
    finally:
        if lock.is_locked:
            # Remove the file before the release. Afterwards, another process may hold the lock on it.
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def free_space(path: Path) -> int:
    """Return the number of free bytes on the disk of `path`. The path need not exist."""
    path = path.absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def remove_incomplete(folder: Path) -> None:
    """Remove the temporary files and folders of processes that were killed while writing."""
    for path in folder.glob(".*.incomplete"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_empty_folder(path: Path) -> None:
    """Raise a `ValueError` if `path` exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is not an empty folder. Remove it, or choose another folder.")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write numbers, strings, paths, lists and dictionaries to a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1, default=os.fspath) + "\n")


def read_json(path: Path, keys: Sequence[str], writer: str) -> dict[str, Any]:
    """Return the content of a JSON file that `writer` wrote. Raise a `ValueError` if one of `keys` is missing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}. Use a file that {writer} wrote.") from error
    if missing := [key for key in keys if not isinstance(content, dict) or key not in content]:
        raise ValueError(f"{path} has no {', '.join(missing)}, so it was not written by {writer}. Use another file.")
    return content


def hash_file(file: str | Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while block := opened.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def read_yaml(path: Path, loader: Any = yaml.SafeLoader) -> Any:
    """Return the content of a YAML file. Raise a `ValueError` if it cannot be read, or has the same key twice."""

    class UniqueKeyLoader(loader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            if repeated := [key for key in keys if keys.count(key) > 1]:
                raise ValueError(f"{path} has the key {repeated[0]!r} twice in the same mapping. Remove one of them.")
            return super().construct_mapping(node, deep)

    if not path.exists():
        raise ValueError(f"{path} does not exist. Give the path of a YAML file.")
    try:
        return UniqueKeyLoader(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML. Check its path and content. (Cause: {error})") from error


def temporary_path(path: Path) -> Path:
    """Return the path at which a file or folder is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.incomplete")


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk. On Windows, which cannot open folders, do nothing."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
