# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens from logits: exact categorical draws in float64, after the warpers of transformers."""

import torch
from transformers.generation import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .orders import draw_uniform


def make_warpers(temperature: float, top_k: int, top_p: float) -> LogitsProcessorList:
    """Temperature, then top-k, then top-p as transformers defines them; those that change nothing are left out."""
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(float(top_p)))
    return warpers


def distribution_of(logits: torch.Tensor, warpers: LogitsProcessorList) -> torch.Tensor:
    """
    The distribution (rows, vocab), float64, that tokens are drawn from. Float32 would lower the effective temperature
    (paper, section 4.3).
    """
    return warpers(None, logits.double()).softmax(dim=-1)


def draw_tokens(weights: torch.Tensor, generator: torch.Generator | None = None) -> torch.LongTensor:
    """
    One token for each row of float64 weights (rows, vocab), with probability in proportion to its weight. A row costs
    one uniform number, by inversion of the cumulative distribution.
    """
    cumulative = weights.cumsum(dim=-1)
    # A uniform below 1 times the total stays below the total, so the first token to exceed it exists and has mass.
    threshold = draw_uniform(len(weights), 1, generator=generator, device=weights.device) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True)
    return tokens.clamp(max=weights.shape[1] - 1).squeeze(1)  # clamped with NaN alone, which the caller reports


def choose_tokens(
    logits: torch.Tensor,
    warpers: LogitsProcessorList,
    do_sample: bool,
    generator: torch.Generator | None = None,
) -> tuple[torch.LongTensor, torch.Tensor]:
    """
    A token for each row of logits (rows, vocab), drawn or, without `do_sample`, the likeliest; and its log-probability
    in nats (rows,) under the warped distribution, NaN where the logits were not finite enough to give one.
    """
    probabilities = distribution_of(logits, warpers)
    tokens = draw_tokens(probabilities, generator) if do_sample else probabilities.argmax(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None]).log().squeeze(1)
