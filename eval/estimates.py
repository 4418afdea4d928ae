# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Perplexity and bits per byte over sequences, with standard errors, and confidence intervals."""

import math

import numpy as np


def perplexity_over(nats: np.ndarray, num_tokens: np.ndarray) -> dict[str, float | None]:
    """Return the perplexity per token over all sequences, with its standard error.

    Each array has one value per sequence. For a single sequence, the standard error is None.
    """
    per_token, error = ratio_with_error(nats, num_tokens)
    perplexity = math.exp(per_token)
    return {"perplexity": perplexity, "perplexity_standard_error": error and perplexity * error}


def bits_per_byte_over(nats: np.ndarray, num_bytes: np.ndarray) -> dict[str, float | None]:
    """Return the bits per byte over all sequences, with their standard error (see `perplexity_over`)."""
    per_byte, error = ratio_with_error(nats, num_bytes)
    return {"bits_per_byte": per_byte / math.log(2), "bits_per_byte_standard_error": error and error / math.log(2)}


def ratio_with_error(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float | None]:
    """Return sum(values) / sum(sizes), and its standard error. With only one value, the standard error is None.

    The standard error is a first-order approximation. The pairs (value, size) must be independent.
    """
    ratio = values.sum() / sizes.sum()
    if len(values) == 1:
        return float(ratio), None
    variance = ((values - ratio * sizes) ** 2).sum() * len(values) / (len(values) - 1)
    return float(ratio), float(variance**0.5 / sizes.sum())


def wilson_interval(fraction: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's confidence interval of a fraction of `total` trials (95 % for z = 1.96)."""
    scale = 1 + z**2 / total
    center = (fraction + z**2 / (2 * total)) / scale
    half = z / scale * math.sqrt(fraction * (1 - fraction) / total + z**2 / (4 * total**2))
    return min(max(center - half, 0.0), fraction), max(min(center + half, 1.0), fraction)
