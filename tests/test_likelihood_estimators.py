# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eval.benchmarks.likelihood_estimators import (
    EstimatorArguments,
    compare,
    count_rows_of_all_ranks,
    count_rows_of_whole_passes,
    difference,
    measure,
    measure_run,
    write_report,
)
from tests.references import random_model

N, M = 6, 4


@pytest.fixture(scope="module")
def results() -> dict:
    ids = torch.randint(0, 11, (20, N), generator=torch.Generator().manual_seed(0))
    arguments = EstimatorArguments(ensemble_size=M, num_draws=8, num_exact=10, num_exact_orders=4)
    return measure(random_model(), ids, arguments)


def test_number_of_rows(results: dict) -> None:
    assert (
        results["all ranks"]["rows_per_sequence"] == 4 * count_rows_of_all_ranks(N, M) == 4 * (6 + 3 * (3 + 4 + 5 + 6))
    )
    assert results["masked diffusion"]["rows_per_sequence"] == 8 * M * N
    assert results["random contexts"]["rows_per_sequence"] == 8 * M * N + 16 * N
    # A pass of n + 1 rows for each of six contexts and three permutations, and one for the order itself.
    assert count_rows_of_whole_passes(N, M) == (6 * 3 + 1) * 7


def test_estimators_agree_and_random_contexts_vary_less(results: dict) -> None:
    comparison = compare(results, N, M)
    for name in ("random ranks", "masked diffusion", "random contexts"):
        assert abs(comparison[name]["difference_in_standard_errors"]) < 4
        assert comparison[name]["rows_times_squared_error"] > 0
    assert comparison["all ranks"]["times_fewer_rows"] == 1
    assert comparison["random contexts"]["times_fewer_rows"] > 2 * comparison["masked diffusion"]["times_fewer_rows"]
    without = compare({name: values for name, values in results.items() if name != "all ranks"}, N, M)
    assert "times_fewer_rows" not in without["random ranks"]
    metrics = without["random ranks"]
    expected = count_rows_of_all_ranks(N, M) * results["one context order"]["rows_per_sequence"] / N
    expected *= sum(results["one context order"]["squared_errors"]) / 20 / metrics["rows_times_squared_error"]
    assert metrics["times_fewer_rows_by_variance_of_one_context_order"] == pytest.approx(expected)


def test_difference_in_standard_errors() -> None:
    """The first two sequences are in both: 3 + 5 - (1 + 2), with a variance of 4 + 9 + 1 + 2."""
    first = {"sequences": 3, "log_likelihoods": [3, 5, 7], "squared_errors": [4, 9, 25]}
    second = {"sequences": 2, "log_likelihoods": [1, 2], "squared_errors": [1, 2]}
    assert difference(first, second) == pytest.approx(5 / math.sqrt(16))


def test_report(results: dict, tmp_path: Path) -> None:
    result = {
        "run": {"corpus": ["random", "made"]},
        "length": N,
        "ensemble_size": M,
        "estimators": results,
        "comparison": compare(results, N, M),
    }
    (tmp_path / "a.json").write_text(json.dumps(result | {"length": N + 1}))
    result["estimators"] = {name: values for name, values in results.items() if name != "all ranks"}
    result["comparison"] = compare(result["estimators"], N, M)
    (tmp_path / "b.json").write_text(json.dumps(result))
    write_report(tmp_path)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    rows = (tmp_path / "report.md").read_text().splitlines()
    assert [row.split(" | ")[1] for row in rows[2:9]] == [str(N)] * 3 + [str(N + 1)] * 4  # sorted by length
    # The factor is in brackets, and there is no difference, unless all ranks were computed.
    assert rows[2].startswith("| random, made | ")
    assert "| (" in rows[2]
    assert rows[2].endswith("|  |")
    assert "| 1 | +0.0 |" in rows[5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_exact": 33}, r"`num_exact` must be at most `num_sequences` \(32\), but is 33"),
        ({"num_exact": -1}, "`num_exact` must be at least 0, but is -1"),
        ({"ensemble_size": 1}, "`ensemble_size` must be at least 2, but is 1"),
        ({"num_draws": 3}, "`num_draws` must be even, but is 3"),
        ({"estimators": ["some ranks"]}, "`estimators` must be one of 'all ranks', .* but is 'some ranks'"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EstimatorArguments(**settings)


def test_unfinished_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no results\.json, so the run is not finished"):
        measure_run(tmp_path, EstimatorArguments())
