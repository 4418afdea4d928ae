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


def choose_tokens(
    logits: torch.Tensor,
    warpers: LogitsProcessorList,
    do_sample: bool,
    generator: torch.Generator | None = None,
) -> tuple[torch.LongTensor, torch.Tensor]:
    """
    A token for each row of logits (rows, vocab), drawn or, without `do_sample`, the likeliest; and its log-probability
    in nats (rows,) under the warped distribution, NaN where the logits were not finite enough to give one.

    All in float64: float32 noise lowers the effective temperature (paper, section 4.3). Each row costs one uniform
    number, by inversion of the cumulative distribution.
    """
    probabilities = warpers(None, logits.double()).softmax(dim=-1)
    if do_sample:
        cumulative = probabilities.cumsum(dim=-1)
        # A uniform below 1 times the total stays below the total, so the first token to exceed it exists and has mass.
        threshold = draw_uniform(len(logits), 1, generator=generator, device=logits.device) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, threshold, right=True)
        tokens = tokens.clamp(max=logits.shape[1] - 1)  # reached with NaN alone, which the caller reports
    else:
        tokens = probabilities.argmax(dim=-1, keepdim=True)
    return tokens.squeeze(1), probabilities.gather(1, tokens).log().squeeze(1)
