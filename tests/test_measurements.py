# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What a card tells of a run: what is true of its weights, and nothing of the machine it was trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.results import read_results
from model_cards.measurements import Measurement, describe_corpus, public_name, run_hyperparameters, run_measurements

RUN = Path(__file__).parents[1] / "docs" / "results" / "quickstart"


def changed_run(folder: Path, **arguments: Any) -> Path:
    """The quickstart's run with other arguments, without a report."""
    results = json.loads((RUN / "results.json").read_text())
    results["arguments"] |= arguments
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def figures_of(run: Path) -> list[Measurement]:
    return run_measurements(run, read_results(run))


def test_figures_of_a_run(tmp_path: Path) -> None:
    of_run = figures_of(RUN)
    assert [row.dataset_name for row in of_run] == ["unicode-names"] * 2
    assert [(row.orders, row.shown) for row in of_run] == [
        ("left to right", "1.018 ± 0.019"),
        ("random orders", "1.055 ± 0.019"),
    ]
    assert [row.shown for row in figures_of(changed_run(tmp_path))] == ["1.018", "1.055"]  # no report, no errors


def test_an_encoder_has_no_figure_left_to_right(tmp_path: Path) -> None:
    results = json.loads((RUN / "results.json").read_text())
    del results["evaluations"][-1]["left_to_right"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert [(row.orders, row.shown) for row in figures_of(tmp_path)] == [("random orders", "1.055")]


def test_a_report_of_another_run_is_refused(tmp_path: Path) -> None:
    """Such as one that was made before the run began anew in the same folder."""
    changed_run(tmp_path)
    report = json.loads((RUN / "report.json").read_text())
    report["run"]["train_seconds"] += 1
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match=r"report\.json is the report of another run: make it anew"):
        figures_of(tmp_path)
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match=r"report\.json has no run, bits_per_byte"):
        figures_of(tmp_path)


def test_settings_that_a_card_shows(tmp_path: Path) -> None:
    shown = run_hyperparameters(read_results(RUN))
    assert (shown["learning rate"], shown["orders"], shown["mixed precision"]) == (0.004, "uniform", "no")
    assert "initial weights" not in shown
    changed_run(tmp_path, orders="left_to_right", final_orders="uniform", init_from="/home/somebody/models/names")
    shown = run_hyperparameters(read_results(tmp_path))
    assert (shown["orders"], shown["orders at the end"]) == ("left_to_right", "uniform")
    assert shown["initial weights"] == "names"
    changed_run(tmp_path, objective="masked_diffusion")
    shown = run_hyperparameters(read_results(tmp_path))
    assert shown["objective"] == "masked_diffusion"
    assert not [words for words in shown if "orders" in words]  # it draws masks


@pytest.mark.parametrize(
    ("name", "public"),
    [
        *[(name, name) for name in ("unicode-names", "gpt2", "Skylion007/openwebtext")],
        ("/home/somebody/customer/mails.jsonl", "mails.jsonl"),
        ("~/customer/mails.txt.gz", "mails.txt.gz"),
        ("customer/*.txt", "*.txt"),
        ("runs/of/somebody", "somebody"),
        ("customer/mails", "mails"),  # a folder that is there
    ],
)
def test_paths_are_private(name: str, public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "customer" / "mails").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert public_name(name) == public


def test_a_card_names_files_without_their_folders(tmp_path: Path) -> None:
    changed_run(tmp_path, corpus=["/home/somebody/one.txt", "/home/somebody/two.txt"])
    assert {row.dataset_name for row in figures_of(tmp_path)} == {"one.txt, two.txt"}
    assert describe_corpus(read_results(tmp_path)).startswith("one.txt, two.txt: 25,534 documents, 147,666 tokens")
    results = json.loads((tmp_path / "results.json").read_text())
    results["corpus"] = {"packing": "packed", "tokenizer": "/home/somebody/tokens", "train": {"streamed_files": 2}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert describe_corpus(read_results(tmp_path)) == "one.txt, two.txt: streamed, packed. Tokenizer: tokens."
