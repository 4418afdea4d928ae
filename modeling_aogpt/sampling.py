# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens from logits: exact categorical draws in float64, after the warpers of transformers."""

import torch
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .orders import draw_uniform

TOP_P_RULES = ("inclusive", "exclusive")


class ExclusiveTopPWarper(LogitsProcessor):
    """
    Top-p as the released code of AO-GPT has it: the token that crosses p is removed too, unless it is the likeliest. Of
    probabilities .6, .3, .1 and p = .7 it keeps one token, transformers' keeps two. Table 1 of the paper was made so.
    """

    def __init__(self, top_p: float) -> None:
        self.top_p = top_p

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.Tensor) -> torch.Tensor:
        ordered, tokens = scores.sort(dim=-1, descending=True)
        is_removed = ordered.softmax(dim=-1).cumsum(dim=-1) > self.top_p
        is_removed[..., 0] = False
        return scores.masked_fill(torch.zeros_like(is_removed).scatter(-1, tokens, is_removed), float("-inf"))


def make_warpers(temperature: float, top_k: int, top_p: float, top_p_rule: str = "inclusive") -> LogitsProcessorList:
    """
    Temperature, then top-k, then top-p as transformers defines them; those that change nothing are left out. Top-p by
    the `"exclusive"` rule is that of [`ExclusiveTopPWarper`].
    """
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        make = TopPLogitsWarper if top_p_rule == "inclusive" else ExclusiveTopPWarper
        warpers.append(make(float(top_p)))
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
    return choose_from(distribution_of(logits, warpers), do_sample, generator)


def choose_from(
    probabilities: torch.Tensor, do_sample: bool, generator: torch.Generator | None = None
) -> tuple[torch.LongTensor, torch.Tensor]:
    """As [`choose_tokens`], from the distributions (rows, vocab) themselves."""
    tokens = draw_tokens(probabilities, generator) if do_sample else probabilities.argmax(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None]).log().squeeze(1)
