# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math
from pathlib import Path

import pytest
import torch

from eval.benchmarks.likelihood_estimators import (
    EstimatorArguments,
    compare,
    difference,
    measure,
    measure_run,
    rows_of_all_ranks,
    rows_of_whole_passes,
    write_report,
)
from tests.references import random_model

N, M = 6, 4


@pytest.fixture(scope="module")
def found() -> dict:
    ids = torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0))
    arguments = EstimatorArguments(ensemble_size=M, num_draws=8, num_exact=10, num_exact_orders=4)
    return measure(random_model(), ids, arguments)


def test_rows_are_those_that_are_computed(found: dict) -> None:
    assert found["all ranks"]["rows_per_sequence"] == 4 * rows_of_all_ranks(N, M) == 4 * (6 + 3 * (3 + 4 + 5 + 6))
    assert found["masked diffusion"]["rows_per_sequence"] == 8 * M * N
    assert found["masked diffusion, gain"]["rows_per_sequence"] == 8 * M * N + 16 * N
    # Every one of six contexts, for each of three permutations, takes a pass; a pass takes all n + 1 rows.
    assert rows_of_whole_passes(N, M) == (6 * 3 + 1) * 7


def test_estimators_agree_and_gains_vary_less(found: dict) -> None:
    table = compare(found, N, M)
    for name in ("random ranks", "masked diffusion", "masked diffusion, gain"):
        assert abs(table[name]["difference_in_standard_errors"]) < 4
        assert table[name]["rows_times_squared_error"] > 0
    assert table["all ranks"]["times_fewer_rows"] == 1
    assert table["masked diffusion, gain"]["times_fewer_rows"] > 2 * table["masked diffusion"]["times_fewer_rows"]
    without = compare({name: values for name, values in found.items() if name != "all ranks"}, N, M)
    assert "times_fewer_rows" not in without["random ranks"]
    figures = without["random ranks"]
    expected = rows_of_all_ranks(N, M) * found["one context order"]["rows_per_sequence"] / N
    expected *= sum(found["one context order"]["squared_errors"]) / 20 / figures["rows_times_squared_error"]
    assert figures["times_fewer_rows_by_variance_of_one_context_order"] == pytest.approx(expected)


def test_difference_in_standard_errors() -> None:
    """Of the sequences that both have: 3 + 5 - (1 + 2), with a variance of 4 + 9 + 1 + 2."""
    first = {"sequences": 3, "log_likelihoods": [3, 5, 7], "squared_errors": [4, 9, 25]}
    second = {"sequences": 2, "log_likelihoods": [1, 2], "squared_errors": [1, 2]}
    assert difference(first, second) == pytest.approx(5 / math.sqrt(16))


def test_report(found: dict, tmp_path: Path) -> None:
    measured = {
        "run": {"corpus": ["random", "made"]},
        "length": N,
        "ensemble_size": M,
        "estimators": found,
        "comparison": compare(found, N, M),
    }
    (tmp_path / "a.json").write_text(json.dumps(measured | {"length": N + 1}))
    measured["estimators"] = {name: values for name, values in found.items() if name != "all ranks"}
    measured["comparison"] = compare(measured["estimators"], N, M)
    (tmp_path / "b.json").write_text(json.dumps(measured))
    write_report(tmp_path)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    rows = (tmp_path / "report.md").read_text().splitlines()
    assert [row.split(" | ")[1] for row in rows[2:9]] == [str(N)] * 3 + [str(N + 1)] * 4  # the shortest first
    # Only where all ranks were computed are the figures without brackets, and is there something to be off by.
    assert rows[2].startswith("| random, made | ")
    assert "| (" in rows[2]
    assert rows[2].endswith("|  |")
    assert "| 1 | +0.0 |" in rows[5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_exact": 33}, "num_exact is 33, but there are num_sequences=32"),
        ({"num_exact": -1}, "num_exact is -1"),
        ({"ensemble_size": 1}, "ensemble_size is 1"),
    ],
)
def test_refuses_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EstimatorArguments(**settings)


def test_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no results\.json; finish the run first"):
        measure_run(tmp_path, EstimatorArguments())
    with pytest.raises(ValueError, match="'some ranks' is no estimator"):
        measure_run(tmp_path, EstimatorArguments(estimators=["some ranks"]))
