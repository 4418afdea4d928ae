# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import runpy
import sys
from pathlib import Path

import pytest

from training.errors import errors_in_a_line

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, LookupError])
def test_what_is_wrong_is_said_in_a_line(kind: type[Exception]) -> None:
    @errors_in_a_line(LookupError)
    def command() -> None:
        raise kind("no such thing")

    with pytest.raises(SystemExit, match=r"^error: no such thing$"):
        command()


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(TypeError), errors_in_a_line():
        raise TypeError


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval/zero_shot.py nowhere --text-file {file}", "There is no model 'nowhere'"),
        ("eval/zero_shot.py nowhere", "either text files"),
        ("eval/tables.py {folder}/none.json", "none.json"),
        ("eval/tables.py {file}", "no results of eval/zero_shot.py"),
        ("eval/generative.py nowhere --output-dir {folder}", "There is no model 'nowhere'"),
        ("training/convert_gpt2.py {folder} {folder}/out", "is no model"),
        ("model_cards/publish.py {folder} somebody/model", "neither a finished run nor a model folder"),
    ],
)
def test_commands_end_without_a_traceback(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("[]")
    monkeypatch.setattr(sys, "argv", command.format(file=file, folder=tmp_path).split())
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")
