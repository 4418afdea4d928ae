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
    difference,
    format_report,
    measure,
    measure_run,
)
from tests.references import random_model, seeded

N, M = 6, 4


def measure_estimators(num_sequences: int, seed: int = 0) -> dict:
    ids = torch.randint(0, 11, (num_sequences, N), generator=seeded())
    arguments = EstimatorArguments(ensemble_size=M, num_draws=8, num_exact_orders=4, seed=seed)
    return measure(random_model(), ids, arguments)


@pytest.fixture(scope="module")
def results() -> dict:
    return measure_estimators(10)


def test_results_depend_on_the_seed() -> None:
    first, again, other = (measure_estimators(1, seed) for seed in (0, 0, 1))
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_number_of_rows(results: dict) -> None:
    """Each context of b >= 2 tokens is permuted M - 1 times, and each of these permutations takes b + 1 rows."""
    assert results["all ranks"]["rows_per_sequence"] == 4 * (6 + 3 * (3 + 4 + 5 + 6))
    assert results["masked diffusion"]["rows_per_sequence"] == 8 * M * N
    assert results["random contexts"]["rows_per_sequence"] == 8 * M * N + 16 * N


def test_estimators_agree_and_random_contexts_vary_less(results: dict) -> None:
    comparison = compare(results)
    for name in ("random ranks", "masked diffusion", "random contexts"):
        assert abs(comparison[name]["difference_in_standard_errors"]) < 4
    assert comparison["all ranks"]["times_fewer_rows"] == 1
    assert comparison["random contexts"]["times_fewer_rows"] > 2 * comparison["masked diffusion"]["times_fewer_rows"]


def test_difference_in_standard_errors() -> None:
    """3 + 5 - (1 + 2), with a variance of 4 + 9 + 1 + 2."""
    first = {"log_likelihoods": [3, 5], "squared_errors": [4, 9]}
    second = {"log_likelihoods": [1, 2], "squared_errors": [1, 2]}
    assert difference(first, second) == pytest.approx(5 / math.sqrt(16))


def test_report(results: dict, tmp_path: Path) -> None:
    result = {"run": {"corpus": ["random", "made"]}, "length": N, "ensemble_size": M, "estimators": results}
    (tmp_path / "a.json").write_text(json.dumps(result | {"length": N + 1}))
    (tmp_path / "b.json").write_text(json.dumps(result))
    rows = format_report(tmp_path).splitlines()
    assert [row.split(" | ")[1] for row in rows[2:10]] == [str(N)] * 4 + [str(N + 1)] * 4  # sorted by length
    assert rows[2].startswith("| random, made | ")
    assert "| all ranks | 10 | 4 |  | " in rows[2]  # 10 sequences, 4 orders
    assert "| 1.0 ± 0.0 | +0.0 |" in rows[2]
    assert "| random contexts | 10 | 16 | 8 | " in rows[5]


def test_error_of_the_number_of_times_fewer_rows() -> None:
    """A ratio of 10 for one sequence and of 30 for the other is 20 ± 10."""
    exact = {"log_likelihoods": [0, 0], "squared_errors": [5.0, 15.0], "rows_per_sequence": 4}
    other = {"log_likelihoods": [0, 0], "squared_errors": [1.0, 1.0], "rows_per_sequence": 2}
    comparison = compare({"all ranks": exact, "other": other})["other"]
    assert comparison["times_fewer_rows"] == pytest.approx(20)
    assert comparison["times_fewer_rows_standard_error"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ensemble_size": 1}, "`ensemble_size` must be at least 2, but is 1"),
        ({"num_draws": 3}, "`num_draws` must be even, but is 3"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EstimatorArguments(**settings)


def test_unfinished_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no results\.json, so the run is not finished"):
        measure_run(tmp_path, EstimatorArguments())
