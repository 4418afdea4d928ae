# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from common.files import (
    atomic_file,
    atomic_folder,
    lock_folder,
    make_folder,
    read_json,
    remove_incomplete,
    write_json,
)


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def fail_while_writing(writer: Callable[[Path], AbstractContextManager[Path]], path: Path, inner: str = "") -> None:
    with writer(path) as temporary:
        (temporary / inner).write_text("half")
        raise InterruptedError


def test_files_appear_when_they_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        temporary.write_text("whole")
    assert content(tmp_path) == {"deep/file.txt": "whole"}


def test_json_files_are_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "results.json", {"figures": [0.1, None], "name": "é", "folder": Path("runs/mine")})
    expected = {"figures": [0.1, None], "name": "é", "folder": "runs/mine"}
    assert read_json(tmp_path / "deep" / "results.json", ["figures"], "us") == expected


def test_new_folders_are_removed_after_an_error_unless_they_have_content(tmp_path: Path) -> None:
    def fail(folder: Path, *files: Path) -> None:
        with make_folder(folder):
            assert folder.is_dir()
            for file in files:
                file.touch()
            raise InterruptedError

    (tmp_path / "old").mkdir()
    for name in ("new/deep", "old/new", "old"):
        with pytest.raises(InterruptedError):
            fail(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    with pytest.raises(InterruptedError):
        fail(tmp_path / "new" / "deep", tmp_path / "new" / "file.txt")
    assert {path.name for path in tmp_path.rglob("*")} == {"old", "new", "file.txt"}
    with make_folder(tmp_path / "kept" / "deep"):
        pass
    assert (tmp_path / "kept" / "deep").is_dir()


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("old")
    with pytest.raises(InterruptedError):
        fail_while_writing(atomic_file, tmp_path / "file.txt")
    assert content(tmp_path) == {"file.txt": "old"}


def test_folders_are_replaced_when_they_are_complete(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("old", "new"):
        with atomic_folder(folder) as temporary:
            (temporary / "inner").mkdir()
            (temporary / "inner" / name).write_text(name)
            assert content(folder) == ({} if name == "old" else {"inner/old": "old"})
    assert content(tmp_path) == {"model/inner/new": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_contains_no_files_of_a_killed_process(tmp_path: Path) -> None:
    leftover = tmp_path / ".model.incomplete"
    leftover.mkdir()
    (leftover / "half").write_text("half")
    with atomic_folder(tmp_path / "model") as temporary:
        (temporary / "new").write_text("new")
    assert content(tmp_path) == {"model/new": "new"}


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    remove_incomplete(tmp_path / "missing")
    (tmp_path / ".model.incomplete" / "inner").mkdir(parents=True)
    (tmp_path / ".results.json.incomplete").write_text("half")
    (tmp_path / "kept").write_text("")
    remove_incomplete(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_full_disk_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"model .*No space left"), atomic_folder(tmp_path / "model"):
        raise SafetensorError("No space left")  # not an OSError
    assert not list(tmp_path.iterdir())


def test_a_folder_is_locked_for_other_processes(tmp_path: Path) -> None:
    script = "import sys; from common.files import *\nwith lock_folder(Path(sys.argv[1])): pass"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with lock_folder(tmp_path):
        refused = subprocess.run(command, capture_output=True, text=True)
    assert f"ValueError: {tmp_path} is in use by another process" in refused.stderr
    assert not list(tmp_path.iterdir())
    subprocess.run(command, check=True)  # the lock is free again


@pytest.mark.parametrize("error", [NotImplementedError, PermissionError])
def test_folders_are_used_unlocked_if_the_file_system_has_no_locks(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("filelock.FileLock._acquire", Mock(side_effect=error("no locks here")))
    with lock_folder(tmp_path):
        (tmp_path / "file.txt").touch()
    assert f"{tmp_path} cannot be locked" in caplog.text
