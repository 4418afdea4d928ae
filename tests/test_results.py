# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from common.files import write_json
from common.results import check_is_no_run, read_finished_run, read_results, settings_of_run


def test_only_finished_runs_have_results(tmp_path: Path) -> None:
    assert read_results(tmp_path) is None
    results = {"arguments": {"packing": "documents", "seed": 1, "tokenizer": None}, "steps": 3}
    with pytest.raises(ValueError, match=r"results\.json"):
        read_finished_run(tmp_path)
    write_json(tmp_path / "results.json", results)
    assert read_results(tmp_path) == read_finished_run(tmp_path) == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_results_of_a_run_are_not_replaced(tmp_path: Path) -> None:
    check_is_no_run(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(ValueError, match="`output_dir`"):
        check_is_no_run(tmp_path)


def test_the_settings_of_a_model_are_those_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "results.json", {"arguments": {"sequence_length": 8}, "steps": 3})
    assert settings_of_run("some/model") == {}
    assert settings_of_run(tmp_path / "model") == {}  # results of another command
    (tmp_path / "tokenizer").mkdir()
    assert settings_of_run(f"{tmp_path}/model") == {"sequence_length": 8}
    assert settings_of_run(tmp_path / "other") == {}
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert settings_of_run(".") == {"sequence_length": 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a JSON file"),
        ("[1]", "has no arguments, steps"),
        ('{"steps": 1}', "has no arguments,"),
    ],
)
def test_errors_name_an_invalid_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=f"results.json {message}"):
        read_results(tmp_path)
