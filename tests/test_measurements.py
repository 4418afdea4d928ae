# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Facts and measurements of a run in a model card. They must not contain paths of the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.results import read_results
from model_cards.measurements import (
    ORDER_SETTINGS,
    Measurement,
    describe_corpus,
    read_run_measurements,
    remove_folders,
    select_hyperparameters,
)

RUN = Path(__file__).parents[1] / "docs" / "results" / "quickstart"


def copy_run(folder: Path, **arguments: Any) -> Path:
    """Copy the results of the quickstart's run, and change arguments."""
    results = json.loads((RUN / "results.json").read_text())
    results["arguments"] |= arguments
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def read_measurements(run: Path) -> list[Measurement]:
    return read_run_measurements(read_results(run), "text-generation")


def test_measurements_of_a_run() -> None:
    measured = read_measurements(RUN)
    assert [row.dataset_name for row in measured] == ["unicode-names"] * 2
    assert [(row.metric_name, row.shown) for row in measured] == [
        ("bits per byte, left to right", "0.971"),
        ("bits per byte, random orders", "1.031"),
    ]


def test_a_measurement_with_quantized_weights_says_so(tmp_path: Path) -> None:
    (measured, _) = read_measurements(copy_run(tmp_path, quantization="nf4"))
    assert measured.dataset_split == "held out, measured with nf4 projections"


def test_a_measurement_of_a_part_of_the_held_out_text_says_so(tmp_path: Path) -> None:
    results = json.loads((RUN / "results.json").read_text())
    results["corpus"]["validation"] |= {"sequences": 1350, "left_out_documents": 26}
    results["evaluations"][-1]["sequences"] = 64
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert read_measurements(tmp_path)[0].dataset_split == "held out, 64 of 1,376 sequences"
    assert read_measurements(RUN)[0].dataset_split == "held out"


def test_tokens_of_documents_that_are_too_long_are_not_those_of_the_training() -> None:
    described = "25,534 documents with 147,666 tokens (including documents that were left out as too long: 1)"
    assert described in describe_corpus(read_results(RUN))


def test_an_encoder_has_no_left_to_right_measurement(tmp_path: Path) -> None:
    results = json.loads((RUN / "results.json").read_text())
    del results["evaluations"][-1]["left_to_right"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    measured = read_measurements(tmp_path)
    assert [(row.metric_name, row.shown) for row in measured] == [("bits per byte, random orders", "1.031")]


def test_hyperparameters_of_a_run(tmp_path: Path) -> None:
    shown = select_hyperparameters(read_results(RUN))
    assert (shown["learning_rate"], shown["orders"], shown["mixed_precision"]) == (0.004, "random", "no")
    assert "init_from" not in shown
    orders = {"orders": "shared", "block_length": 4, "stride": None}
    fractions = {"left_to_right_fraction": 0.1, "final_left_to_right_fraction": 1.0}
    copy_run(tmp_path, **orders, **fractions, init_from="/home/somebody/models/names")
    shown = select_hyperparameters(read_results(tmp_path))
    assert (shown["orders"], shown["block_length"]) == ("shared", 4)
    assert "stride" not in shown
    assert shown["left_to_right_fraction"] == 0.1
    assert shown["final_left_to_right_fraction"] == 1.0
    assert shown["init_from"] == "names"
    copy_run(tmp_path, orders="context_first", max_context=3, learning_rate_schedule="warmup_stable_decay")
    shown = select_hyperparameters(read_results(tmp_path))
    assert (shown["max_context"], shown["learning_rate_schedule"]) == (3, "warmup_stable_decay")
    assert shown.keys().isdisjoint({"tracker", "output_dir", "eval_steps"})
    copy_run(tmp_path, objective="masked_diffusion")
    shown = select_hyperparameters(read_results(tmp_path))
    assert shown["objective"] == "masked_diffusion"
    assert shown.keys().isdisjoint(ORDER_SETTINGS)  # this objective draws masks instead


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[(name, name) for name in ("unicode-names", "gpt2", "Skylion007/openwebtext")],
        ("/home/somebody/customer/mails.jsonl", "mails.jsonl"),
        ("~/customer/mails.txt.gz", "mails.txt.gz"),
        ("customer/*.txt", "*.txt"),
        ("runs/of/somebody", "somebody"),
        ("runs/mine/model", "mine"),
        ("customer/mails", "mails"),  # an existing folder
    ],
)
def test_folders_are_removed_from_names(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "customer" / "mails").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert remove_folders(name) == expected


def test_a_card_names_files_without_their_folders(tmp_path: Path) -> None:
    corpus = ["/home/somebody/one.txt", "/home/somebody/two.txt"]
    copy_run(tmp_path, corpus=corpus, validation_files=["/home/somebody/three.txt"])
    assert {row.dataset_name for row in read_measurements(tmp_path)} == {"three.txt"}
    copy_run(tmp_path, corpus=corpus, validation_files=[])
    assert {row.dataset_name for row in read_measurements(tmp_path)} == {"one.txt, two.txt"}
    assert describe_corpus(read_results(tmp_path)).startswith("one.txt, two.txt: 25,534 documents with 147,666")
    results = json.loads((tmp_path / "results.json").read_text())
    results["corpus"] = {"packing": "packed", "tokenizer": "/home/somebody/tokens", "train": {"streamed_files": 2}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert describe_corpus(read_results(tmp_path)) == "one.txt, two.txt: streamed, packed. Tokenizer: tokens."
