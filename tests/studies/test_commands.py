# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.test_commands import check_error, find_scripts
from tests.training_runs import reset_accelerator

STUDIES = "eval/studies"
WRONG = [
    (f"{STUDIES}/context_orders/context_orders.py damaged", "damaged/results.json is not a JSON file"),
    (f"{STUDIES}/context_orders/context_orders.py folder --max_ensemble 6", "`max_ensemble` must be a power of 2"),
    (f"{STUDIES}/context_orders/context_orders.py", None),
    (f"{STUDIES}/infilling/compare.py folder", "folder has no finished runs"),
    (f"{STUDIES}/infilling/fill_in_the_middle.py none.yaml", "none.yaml does not exist"),
    (f"{STUDIES}/infilling/tokenizer.py", None),
    (f"{STUDIES}/names/watch.py nowhere", "There is no model 'nowhere'"),
    (f"{STUDIES}/own_orders/own_orders.py none.yaml", "none.yaml does not exist"),
    (f"{STUDIES}/reversal/reversal.py folder", "has no results.json, so the run is not finished"),
    (f"{STUDIES}/rewards/compare.py folder", "folder has no finished runs ARM-SEED"),
    (f"{STUDIES}/rewards/likelihoods.py none.yaml", "none.yaml does not exist"),
    (f"{STUDIES}/runner/report.py folder", "The folder 'folder' has no JSON files"),
    (f"{STUDIES}/runner/study.py text.txt", "text.txt cannot be read as YAML"),
    (f"{STUDIES}/runner/study.py list.json", "list.json must contain the mappings"),
    (f"{STUDIES}/runner/study.py", None),
    (f"{STUDIES}/sudoku/puzzles.py folder", "has no results.json, so the run is not finished"),
    (f"{STUDIES}/sudoku/puzzles.py folder --num_puzzles 0", "`num_puzzles` must be at least 1, but is 0"),
]


@pytest.mark.parametrize(("command", "message"), WRONG)
def test_commands_report_errors_without_a_traceback(
    command: str,
    message: str | None,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reset_accelerator()
    monkeypatch.chdir(tmp_path)
    check_error(command, message, tiny_tokenizer, monkeypatch, capsys)


def test_the_errors_of_every_command_are_tested() -> None:
    commands = find_scripts(STUDIES) - {f"{STUDIES}/docstrings/pairs.py"}  # it has no arguments
    assert commands == {command.split()[0] for command, _ in WRONG}
