# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens from logits: exact categorical draws in float64, after the warpers of transformers."""

import torch
import torch.nn.functional as F
from transformers.generation import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from .devices import draw_uniform

TOP_P_RULES = ("inclusive", "exclusive")


# Candidates that top-p sorts at first. Of a trained model's distributions they nearly always hold the nucleus.
NUM_CANDIDATES = 1024


class PartialTopPWarper(LogitsProcessor):
    """
    Top-p that sorts the likeliest tokens only, and all of them where these do not reach p. What is left over are the
    very tokens that transformers' `TopPLogitsWarper` leaves (of equals at the edge, as many).

    Without `keeps_crossing` the token that crosses p is removed too, unless it is the likeliest, as in the released
    code of AO-GPT: of probabilities .6, .3, .1 and p = .7 one token is kept, not two. Table 1 of the paper was made so.
    """

    def __init__(self, top_p: float, keeps_crossing: bool = True) -> None:
        self.top_p, self.keeps_crossing = top_p, keeps_crossing

    def __call__(self, input_ids: torch.LongTensor | None, scores: torch.Tensor) -> torch.Tensor:
        total = scores.logsumexp(dim=-1, keepdim=True)
        for num_candidates in (min(NUM_CANDIDATES, scores.shape[-1]), scores.shape[-1]):
            candidates, tokens = scores.topk(num_candidates)
            probabilities = (candidates - total).exp()
            reached = probabilities.cumsum(dim=-1)
            if (reached[:, -1] > self.top_p).all():
                break
        is_kept = reached - probabilities < self.top_p if self.keeps_crossing else reached <= self.top_p
        is_kept[:, 0] = True
        kept = candidates.masked_fill(~is_kept, float("-inf"))
        return torch.full_like(scores, float("-inf")).scatter(-1, tokens, kept)


def make_warpers(temperature: float, top_k: int, top_p: float, top_p_rule: str = "inclusive") -> LogitsProcessorList:
    """
    Temperature, then top-k, then top-p as transformers defines them; those that change nothing are left out. Top-p by
    the `"exclusive"` rule is that of the released code, see [`PartialTopPWarper`].
    """
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(PartialTopPWarper(float(top_p), keeps_crossing=top_p_rule == "inclusive"))
    return warpers


def distribution_of(logits: torch.Tensor, warpers: LogitsProcessorList) -> torch.Tensor:
    """
    The distribution (rows, vocab), float64, that tokens are drawn from. Float32 would lower the effective temperature
    (paper, section 4.3).
    """
    return warpers(None, logits.double()).softmax(dim=-1)


# Tokens whose mass is added up before any of it is cumulated, which cannot be done in parallel.
BLOCK_SIZE = 128


def draw_tokens(weights: torch.Tensor, generator: torch.Generator | None = None) -> torch.LongTensor:
    """
    One token for each row of float64 weights (rows, vocab), with probability in proportion to its weight. A row costs
    one uniform number, by inversion of the cumulative distribution: of blocks of tokens, then within the block drawn.
    """
    num_missing = -weights.shape[1] % BLOCK_SIZE
    blocks = F.pad(weights, (0, num_missing)) if num_missing else weights  # padding by nothing would copy
    blocks = blocks.unflatten(1, (-1, BLOCK_SIZE))
    uniform = draw_uniform(len(weights), 1, generator=generator, device=weights.device)
    block, uniform = _invert(blocks.sum(dim=-1).cumsum(dim=-1), uniform)
    within = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK_SIZE)).squeeze(1).cumsum(dim=-1)
    tokens = block * BLOCK_SIZE + _invert(within, uniform)[0]
    return tokens.clamp(max=weights.shape[1] - 1).squeeze(1)  # clamped with NaN alone, which the caller reports


def _invert(cumulative: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.LongTensor, torch.Tensor]:
    """Which entry (rows, 1) of each row a uniform number below 1 falls into, and how far, again as a uniform number."""
    # A uniform below 1 times the total stays below the total, so the first entry to exceed it exists and has mass.
    threshold = uniform * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, threshold, right=True).clamp(max=cumulative.shape[1] - 1)
    before = cumulative.gather(1, (index - 1).clamp(min=0)).masked_fill(index == 0, 0.0)
    share = (threshold - before) / (cumulative.gather(1, index) - before)
    return index, share.clamp(max=1 - 2**-53)


# Rows that a CPU draws from at once. Fresh memory for the distributions of 32 can cost four times the arithmetic.
ROWS_ON_CPU = 16


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
    num_rows = ROWS_ON_CPU if logits.is_cpu else max(len(logits), 1)
    chosen = [choose_from(distribution_of(rows, warpers), do_sample, generator) for rows in logits.split(num_rows)]
    tokens, logprobs = zip(*chosen, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def choose_from(
    probabilities: torch.Tensor, do_sample: bool, generator: torch.Generator | None = None
) -> tuple[torch.LongTensor, torch.Tensor]:
    """As [`choose_tokens`], from the distributions (rows, vocab) themselves."""
    tokens = draw_tokens(probabilities, generator) if do_sample else probabilities.argmax(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None]).log().squeeze(1)
