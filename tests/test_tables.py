# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Tables of measured and published results. Rows that depart from the published protocol are marked."""

import json
from pathlib import Path
from typing import Any

import pytest

from eval.tables import COLUMNS, PUBLISHED, main, paper_table, zero_shot_table
from model_cards.card import find_cards, read_facts

METRICS = {"perplexity": 40.0, "perplexity_standard_error": 0.5}


def make_results(**changed: Any) -> dict[str, Any]:
    """Return results of a small model under the published protocol, with the items in `changed` replaced."""
    return {
        "model": "mine",
        "num_parameters": 170_600_000,
        "tokenizer": {"num_ids": 50257},
        "protocol": "published",
        "sequence_length": 1024,
        "mixed_precision": {"left_to_right": "bf16", "any_order": "no", "ensemble": "no"},
        "published_precision": {"left_to_right": "bf16", "any_order": "no", "ensemble": "no"},
        "arguments": {"dtype": "float32", "ensemble_size": 8, "num_orders": 1},
        "datasets": {
            "ptb": {
                "split": "test",
                "documents": 3761,
                "measures": {"left_to_right": METRICS, "any_order": METRICS, "ensemble": METRICS},
            }
        },
    } | changed


def test_a_run_of_the_published_protocol_has_no_mark() -> None:
    lines = paper_table([make_results()]).splitlines()
    assert sum(line.startswith("| **mine") for line in lines) == 3
    assert not [line for line in lines if "[*]" in line]


@pytest.mark.parametrize(
    ("num_parameters", "size"), [(124_000_000, "small"), (170_600_000, "small"), (425_800_000, "medium")]
)
def test_published_rows_of_the_same_size_are_shown(num_parameters: int, size: str) -> None:
    lines = paper_table([make_results(num_parameters=num_parameters)]).splitlines()
    published = {line.partition(" (published)")[0].rpartition(" ")[2] for line in lines if "(published)" in line}
    assert published == {size}
    assert "(published)" not in paper_table([make_results(num_parameters=10_000_000)])


def test_a_column_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COLUMNS, "error", ("r", lambda result: f"{result['perplexity_standard_error']:.3f}"))
    scored = {"documents": 1, "tokens": 9, "dropped_tokens": 0, "measures": {"any_order": METRICS | {"sequences": 1}}}
    header, rule, row, *_ = zero_shot_table([make_results(datasets={"mine.txt": scored})]).splitlines()
    assert header.endswith("| perplexity | bits per byte | error |")
    assert rule == "|:--|--:|--:|--:|:--|--:|--:|--:|--:|"
    assert row == "| mine.txt | 1 | 9 | 0 | random orders | 1 | 40.00 ± 0.50 |  | 0.500 |"


def test_several_evaluations_of_text_files_can_be_told_apart() -> None:
    scored = {"documents": 1, "tokens": 9, "dropped_tokens": 0, "measures": {"ensemble": METRICS | {"sequences": 1}}}
    runs = [
        make_results(
            datasets={"text files": scored | {"files": ["mine.txt"], "packing": "packed"}},
            sequence_length=length,
            arguments={"dtype": "float32", "ensemble_size": size, "num_orders": 1},
        )
        for length, size in ((16, 4), (16, 8), (1024, 8))
    ]
    _, _, *rows = zero_shot_table(runs).split("\n\n")[0].splitlines()
    assert len(set(rows)) == 3
    assert rows[0].startswith("| mine | packed, sequences of 16 tokens | mine.txt | 1 |")
    assert "| random orders, 4 context orders |" in rows[0]


def test_published_results_agree_with_the_model_cards() -> None:
    names = {"ao-gpt": "AO-GPT", "sigma-gpt": "sigma-GPT", "sedd": "SEDD", "radd": "RADD"}
    in_cards = {
        (names[family], size, tuple(row))
        for family, _, size in (card.rpartition("-") for card in find_cards())
        if family in names
        for row in read_facts(f"{family}-{size}")["published"]["rows"].values()
    }
    in_tables = {
        (model.partition(",")[0], size, tuple(row))
        for size, measures in PUBLISHED.items()
        for rows in measures.values()
        for model, row in rows.items()
        if model != "GPT-2"
    }
    assert in_cards == in_tables


@pytest.mark.parametrize(
    ("changed", "num_marked", "note"),
    [
        ({"protocol": "clean"}, 3, "clean protocol, which drops no tokens"),
        ({"sequence_length": 512}, 3, "sequences of 512"),
        ({"tokenizer": {"num_ids": 400}}, 3, "a tokenizer of 400 ids"),
        ({"arguments": {"dtype": "bfloat16", "ensemble_size": 8}}, 3, "weights in bfloat16"),
        ({"mixed_precision": dict.fromkeys(("left_to_right", "any_order", "ensemble"), "no")}, 1, "precision 'no'"),
        ({"mixed_precision": dict.fromkeys(("left_to_right", "any_order", "ensemble"), "bf16")}, 2, "precision 'bf16'"),
        (
            {"datasets": {"ptb": {"split": "validation", "measures": {"any_order": METRICS}}}},
            1,
            "validation split of PTB",
        ),
        (
            {"datasets": {"ptb": {"split": "test", "documents": 20, "measures": {"any_order": METRICS}}}},
            1,
            "20 of the 3761 documents of PTB",
        ),
    ],
)
def test_departures_from_the_protocol_are_marked(changed: dict[str, Any], num_marked: int, note: str) -> None:
    lines = paper_table([make_results(**changed)]).splitlines()
    assert sum(line.startswith("| **mine") and "[*]" in line for line in lines) == num_marked
    assert sum(line.startswith("[*] mine") and note in line for line in lines) == num_marked


def test_results_of_text_files_have_a_table_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    metrics = METRICS | {"sequences": 7, "bits_per_byte": 1.5, "bits_per_byte_standard_error": 0.25}
    scored = {"documents": 5, "tokens": 1234, "dropped_tokens": 0, "measures": {"any_order": metrics}}
    scored |= {"files": ["mine.txt"], "packing": "packed"}
    files = [tmp_path / f"{name}.json" for name in ("one", "two", "published")]
    for file in files[:2]:
        file.write_text(json.dumps(make_results(model=file.stem, datasets={"text files": scored})))
    files[2].write_text(json.dumps(make_results()))
    main(list(map(str, files)))
    shown = capsys.readouterr().out
    assert shown.count("| mine.txt | 5 | 1,234 | 0 | random orders | 7 | ") == 2
    assert "\n| two | packed, sequences of 1024 tokens | mine.txt | " in shown
    assert shown.count("| 1.5000 ± 0.2500 |") == 2
    assert shown.count("| **mine** |") == 2
