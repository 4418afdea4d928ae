# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Means over seeds with confidence intervals."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from common.reports import with_error

# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom. For more degrees of freedom, the last
# one is used, which makes the intervals slightly too wide.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def estimate(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean of values, one per seed, and half the width of its 95 % confidence interval (Student's t).

    The half-width of a single value is None.
    """
    half_width = None
    if len(values) > 1:
        quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
        half_width = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": statistics.fmean(values), "half_width": half_width, "values": list(values)}


def format_estimate(value: dict[str, Any] | None, factor: int = 1, unit: str = "") -> str:
    """Format a result of `estimate` as mean ± half-width, or return an empty string if it is None."""
    if value is None:
        return ""
    half_width = value["half_width"]
    digits = 3 if factor == 1 else 0
    text = with_error(factor * value["mean"], None if half_width is None else factor * half_width, digits)
    return f"{text} {unit}".rstrip()
