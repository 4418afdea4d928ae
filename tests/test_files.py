# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from training.files import remove_incomplete, whole_file, whole_folder


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_half(writer: Callable[[Path], AbstractContextManager[Path]], path: Path, inner: str = "") -> None:
    with writer(path) as temporary:
        (temporary / inner).write_text("half")
        raise InterruptedError


def test_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with whole_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        temporary.write_text("whole")
    assert content(tmp_path) == {"deep/file.txt": "whole"}


def test_readers_of_the_old_file_are_not_disturbed(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("old")
    with (tmp_path / "file.txt").open() as reader:
        with whole_file(tmp_path / "file.txt") as temporary:
            temporary.write_text("new")
        assert reader.read() == "old"
    assert content(tmp_path) == {"file.txt": "new"}


def test_failure_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("old")
    with pytest.raises(InterruptedError):
        write_half(whole_file, tmp_path / "file.txt")
    assert content(tmp_path) == {"file.txt": "old"}


def test_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("old", "new"):
        with whole_folder(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / name).write_text(name)
            assert content(folder) == ({} if name == "old" else {"inner/old": "old"})
    assert content(tmp_path) == {"model/inner/new": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_failure_keeps_the_old_folder_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old")
    with pytest.raises(InterruptedError):
        write_half(whole_folder, tmp_path / "model", inner="half")
    assert content(tmp_path) == {"model/old": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_leftovers_of_a_killed_process_do_not_get_into_a_folder(tmp_path: Path) -> None:
    leftover = tmp_path / ".model.incomplete"
    leftover.mkdir()
    (leftover / "half").write_text("half")
    with whole_folder(tmp_path / "model") as temporary:
        (temporary / "new").write_text("new")
    assert content(tmp_path) == {"model/new": "new"}


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    remove_incomplete(tmp_path / "missing")
    (tmp_path / ".model.incomplete" / "inner").mkdir(parents=True)
    (tmp_path / ".results.json.incomplete").write_text("half")
    (tmp_path / "kept").write_text("")
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
