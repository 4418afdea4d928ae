# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Unmasking: the choice of the positions that each step fills in.

A schedule is a grid of diffusion times. In each step, the model predicts the tokens of some masked positions, the
candidates. An unmasking rule decides which candidates the step unmasks. Many rules unmask a given number of the first
candidates. With an adaptive order, a certainty measure decides which candidates come first. `ParallelSampler` runs the
steps.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .decoding_state import DecodingState, QueryResult
from .devices import draw_uniform, to_device
from .orders import group_orders
from .sampling import SampledTokens, TokenSampler

SCHEDULES = ("linear", "cosine")
SCORE_UNMASKING = ("euler", "analytic")
ADAPTIVE_UNMASKING = ("entropy_bound", "threshold")
UNMASKING = ("bernoulli", "fixed_count", *ADAPTIVE_UNMASKING, *SCORE_UNMASKING)

# The log-linear noise of SEDD masks at most this fraction of the tokens.
MAX_MASKED_FRACTION = 1 - 1e-3

# SEDD's sampler stops at this diffusion time, and unmasks the remaining positions in one more step.
LAST_TIME = 1e-5


# --------------------------------------------------------------------------------------------------------- schedules


def log_linear_noise(times: torch.Tensor) -> torch.Tensor:
    """
    Return the noise level sigma(t) = -log(1 - (1 - eps) t) at diffusion times t in [0, 1], with eps = 1e-3.

    At this level a token is masked with probability 1 - e^-sigma = (1 - eps) t (SEDD, arXiv 2310.16834).
    """
    return -torch.log1p(-MAX_MASKED_FRACTION * times)


def masked_fractions(num_steps: int, schedule: str) -> torch.Tensor:
    """
    Return the grid 1 = t_0 > t_1 > ... > t_T = 0 of expected masked fractions, float64 of shape (T + 1,).

    Args:
        num_steps (`int`): Number of steps T.
        schedule (`str`): `"linear"`: t_k = 1 - k / T, as in the paper. `"cosine"`: t_k = cos(pi k / 2T), which unmasks
            few positions per step at first and more positions later (MaskGIT, arXiv 2202.04200, section 3.2).

    Examples:
        >>> masked_fractions(4, "linear").tolist()
        [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    progress = torch.arange(num_steps + 1, dtype=torch.float64, device="cpu") / num_steps
    fractions = {"linear": 1 - progress, "cosine": torch.cos(progress * math.pi / 2)}[schedule]
    fractions[-1] = 0.0
    return fractions


def draw_step_sizes(
    num_masked: torch.LongTensor,
    num_steps: int,
    schedule: str,
    unmasking: str,
    generator: torch.Generator | None = None,
) -> torch.LongTensor:
    """
    Draw the number of ranks that each step unmasks, for sequences with `num_masked` (batch,) masked ranks.

    The `schedule` gives the expected fraction t_k of the initial masks that remain after step k (counted from 1). With
    `unmasking="bernoulli"` (Lemma 4.1), the step of each position is drawn independently, and is k with probability
    t_{k-1} - t_k. The first step then unmasks the first ranks, the second step the next ranks, and so on. In a
    uniformly random order, positions are exchangeable, so this does not change the distribution. With `"fixed_count"`
    (as in the released code), the first floor(m (1 - t_k)) of the m masked ranks of a sequence are unmasked after step
    k, but each step unmasks at least one rank while any rank is masked.

    Returns:
        `torch.LongTensor` (batch, num_steps) on the CPU. The sum over the steps is `num_masked`.

    Examples:
        >>> draw_step_sizes(torch.tensor([6, 3]), 3, "linear", "fixed_count")
        tensor([[2, 2, 2],
                [1, 1, 1]])
    """
    num_masked = num_masked.cpu()
    fractions = masked_fractions(num_steps, schedule)
    if unmasking == "bernoulli":
        length = int(num_masked.max())
        draws = draw_uniform(len(num_masked), length, generator=generator, device="cpu")
        # Draws in [1 - t_k, 1 - t_{k+1}) are mapped to step k (counted from 0).
        steps = torch.bucketize(draws, 1 - fractions[1:-1], right=True)
        is_masked = torch.arange(length, device="cpu") < num_masked[:, None]
        return num_masked.new_zeros(len(num_masked), num_steps).scatter_add(1, steps, is_masked.long())
    # Without 1e-9, a rounding error of the grid could turn an exact integer into the next lower integer.
    targets = (num_masked[:, None] * (1 - fractions[1:]) + 1e-9).floor().long()
    counts = torch.arange(1, num_steps + 1, device="cpu")  # after each step, if it unmasks a single rank
    ends = counts + (targets - counts).clamp(min=0).cummax(dim=1).values
    return torch.minimum(ends, num_masked[:, None]).diff(dim=1, prepend=torch.zeros_like(num_masked)[:, None])


# --------------------------------------------------------------------------------------------------------- certainty


def confidence(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the probability (queries,) of the likeliest token (MaskGIT, arXiv 2202.04200, section 3.2)."""
    return probabilities.amax(dim=-1)


def margin(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the difference (queries,) between the two highest probabilities (arXiv 2502.06768)."""
    if probabilities.shape[-1] == 1:
        return probabilities[:, 0]
    first, second = probabilities.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second


def negative_entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the negative entropy (queries,) in nats (arXiv 2505.24857)."""
    return torch.special.xlogy(probabilities, probabilities).sum(dim=-1)


# Measures of certainty for adaptive orders, by the name of the order: functions of probabilities (queries, vocab_size).
# The positions with the highest values are unmasked first.
CERTAINTY_MEASURES = {"confidence": confidence, "margin": margin, "entropy": negative_entropy}


# ------------------------------------------------------------------------------------------------------------- rules


class Candidates(NamedTuple):
    """Masked ranks that the model predicted in a step. The columns of a sequence are in order of preference."""

    is_candidate: torch.BoolTensor  # (batch, columns): False if a sequence has fewer candidates than columns
    num_planned: torch.LongTensor  # (batch,): number of ranks that the rule planned to unmask in this step
    measures: dict[str, torch.Tensor]  # results of `UnmaskingRule.measure`, each (batch, columns)


class UnmaskingRule:
    """
    Rule that decides which positions a step unmasks.

    For each step, a rule first plans the number of ranks to unmask. The model then predicts the tokens at some masked
    positions, the candidates. By default, the step unmasks the planned number of candidates, starting with the first. A
    subclass can also select candidates by their predictions.
    """

    is_adaptive = False  # whether the number of ranks that a step unmasks depends on predictions
    takes_leading = True  # whether the selected candidates are always the first ones

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """
        Yield the index of each step and the planned number of ranks to unmask, (batch,) on the CPU.

        Further calls, for refinement, continue the count of the steps. Steps without a planned rank can be left out.
        """
        raise NotImplementedError

    def noise_level(self, step: int) -> float | None:
        """Return the noise level that SEDD gets, or None to compute it from the fraction of masked tokens."""
        return None

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the measures of the predictions that `select` needs, by name (see `MeasureFunction`)."""
        return {}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Return a boolean tensor (batch, columns) that is True at the candidates to unmask."""
        device = candidates.is_candidate.device
        columns = torch.arange(candidates.is_candidate.shape[1], device=device)
        return columns < to_device(candidates.num_planned, device)[:, None]


class ScheduledUnmasking(UnmaskingRule):
    """
    Rule that draws the numbers of ranks for all steps before the first pass (see [`draw_step_sizes`]).

    Without `num_steps`, one position is unmasked at a time. If the rule is used again for refinement, the number of
    steps is reduced in proportion to the number of masked ranks.
    """

    def __init__(
        self, num_steps: int | None, schedule: str, unmasking: str, generator: torch.Generator | None = None
    ) -> None:
        self.num_steps, self.schedule, self.unmasking, self.generator = num_steps, schedule, unmasking, generator
        self._initial_num_masked: int | None = None
        self._first_step = 0

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """Yield each step, and the number (batch,) of ranks that the schedule assigns to it."""
        num_masked = int(state.num_masked.max())
        self._initial_num_masked = self._initial_num_masked or num_masked
        if self.num_steps is None:
            num_steps, unmasking = num_masked, "fixed_count"
        else:
            num_steps, unmasking = math.ceil(self.num_steps * num_masked / self._initial_num_masked), self.unmasking
        plan = draw_step_sizes(state.num_masked, num_steps, self.schedule, unmasking, self.generator)
        first, self._first_step = self._first_step, self._first_step + num_steps
        for step in plan.any(dim=0).nonzero().squeeze(1).tolist():
            yield first + step, torch.minimum(plan[:, step], state.num_masked)


class AdaptiveUnmasking(UnmaskingRule):
    """
    Base class of rules in which predictions decide the number of steps. Each step unmasks at least one position.

    `bound` is the argument `entropy_bound` or `threshold` of `generate`.
    """

    is_adaptive = True

    def __init__(self, bound: float) -> None:
        self.bound, self._step = bound, 0

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """Yield steps, each with a plan of one rank per unfinished sequence, until no rank is masked."""
        while state.num_masked.any():
            yield self._step, state.num_masked.clamp(max=1)
            self._step += 1


class EntropyBoundUnmasking(AdaptiveUnmasking):
    """
    Rule that unmasks as many of the first candidates as the entropy bound allows, and at least one.

    The sum of the entropies of these candidates minus the largest entropy is at most `bound` nats. This difference
    bounds the Kullback-Leibler divergence between the joint distribution of the tokens and the product of the
    distributions from which they are drawn (arXiv 2505.24857), at temperature 1 and without truncation. (Entropies are
    computed before temperature and truncation are applied.)
    """

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the entropy of each prediction in nats."""
        return {"entropy": -negative_entropy(probabilities)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Return a boolean tensor (batch, columns) that is True at the first candidates, as far as the bound allows."""
        entropies = candidates.measures["entropy"]
        total_correlation_bound = entropies.cumsum(dim=1) - entropies.cummax(dim=1).values
        is_selected = total_correlation_bound <= self.bound + 1e-12  # allow for rounding
        is_selected[:, 0] = True
        return candidates.is_candidate & is_selected


class ThresholdUnmasking(AdaptiveUnmasking):
    """
    Rule that unmasks every candidate whose likeliest token has at least the probability `bound`.

    If there is no such candidate, it unmasks the first candidate (Fast-dLLM, arXiv 2505.22618, section 3.3).
    """

    takes_leading = False

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the probability of the likeliest token of each prediction."""
        return {"confidence": confidence(probabilities)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Return a boolean tensor (batch, columns) that is True at the candidates to unmask."""
        is_candidate, measures = candidates.is_candidate, candidates.measures
        is_selected = is_candidate & (measures["confidence"] >= self.bound)
        is_selected[:, 0] |= is_candidate[:, 0] & ~is_selected.any(dim=1)
        return is_selected


class ScoreUnmasking(UnmaskingRule):
    """
    Rule of SEDD's samplers, which unmask positions with probabilities given by the score s (arXiv 2310.16834).

    The score s_y is the predicted ratio of two probabilities at time t: that of the sequence with token y at a masked
    position, and that of the sequence with the mask there. sigma(t) is the noise level (see [`log_linear_noise`]). In a
    step from diffusion time t to the lower time t', a masked position becomes token y

    * `"euler"`: with probability (t - t') sigma'(t) s_y, from the rate at time t;
    * `"analytic"`: with probability (e^(sigma(t) - sigma(t')) - 1) s_y (Tweedie tau-leaping). This is exact for a
      single position if the score is exact.

    If the sum of these probabilities over y exceeds 1, for example because the network overestimates the score, the
    position is always unmasked. After the last step of the schedule, one more step unmasks the remaining positions.
    """

    is_adaptive = True
    takes_leading = False

    def __init__(
        self, num_steps: int, schedule: str, unmasking: str, num_tokens: int, generator: torch.Generator | None
    ) -> None:
        self.times = LAST_TIME + (1 - LAST_TIME) * masked_fractions(num_steps, schedule)
        self.unmasking, self.num_tokens, self.generator = unmasking, num_tokens, generator

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """Yield the steps of the schedule and one more step. In each step, every masked rank is a candidate."""
        for step in range(len(self.times)):
            yield step, state.num_masked

    def noise_level(self, step: int) -> float:
        """Return the noise level at the beginning of the step."""
        return log_linear_noise(self.times[step]).item()

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the log of the sum of all scores s_y of each query, without the factor 1 / (e^sigma - 1)."""
        return {"log_total": logits.double().logsumexp(dim=-1) - math.log(self.num_tokens)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Return a boolean tensor (batch, columns) that is True at candidates drawn by their scores."""
        if step == len(self.times) - 1:
            return candidates.is_candidate
        time, next_time = self.times[step].item(), self.times[step + 1].item()
        sigma, next_sigma = self.noise_level(step), self.noise_level(step + 1)
        total_score = candidates.measures["log_total"].exp() / math.expm1(sigma)
        if self.unmasking == "euler":
            rate = MAX_MASKED_FRACTION / (1 - MAX_MASKED_FRACTION * time)
            probability = (time - next_time) * rate * total_score
        else:
            probability = math.expm1(sigma - next_sigma) * total_score
        draws = draw_uniform(*probability.shape, generator=self.generator, device=probability.device)
        return candidates.is_candidate & (draws < probability)


# ----------------------------------------------------------------------------------------------------------- sampler


class ParallelSampler:
    """
    Sampler that unmasks one or several positions per forward pass.

    The tokens of a step are drawn independently of each other, given all tokens that were unmasked before. `certainty`
    is a name in `CERTAINTY_MEASURES`. If it is given, the candidates with the highest certainty come first. Otherwise,
    candidates keep their order in `state`. With `certainty`, samples no longer follow the model's distribution for a
    given order.

    With `certainty` or an adaptive rule, all masked ranks of the block are candidates, at most `window` (or the planned
    number, if it is larger). Otherwise, only the planned ranks are.
    """

    def __init__(
        self,
        state: DecodingState,
        rule: UnmaskingRule,
        sampler: TokenSampler,
        certainty: str | None = None,
        window: int | None = None,
    ) -> None:
        self.state, self.rule, self.sampler = state, rule, sampler
        self.certainty, self.window = certainty, window
        self.needs_measures = certainty is not None or rule.is_adaptive

    def run(self) -> Iterator[None]:
        """Unmask all masked positions, and yield after each step that unmasked at least one of them."""
        # The block of each rank (batch, n). Candidates move only within their block, so it does not change.
        blocks = self.state.blocks.cpu() if self.needs_measures else None
        for step, num_planned in self.rule.steps(self.state):
            num_queries = num_planned if blocks is None else self._count_candidates(num_planned, blocks)
            if not num_queries.any():
                continue  # no forward pass
            sigma = self.rule.noise_level(step)
            result = self.state.query(num_queries) if sigma is None else self.state.query(num_queries, sigma)
            sampled = self.sampler.sample(result, self._measure if self.needs_measures else None)
            if self.needs_measures:
                num_unmasked = self._commit_selected(result, sampled, num_queries, num_planned, step)
            else:
                num_unmasked = num_planned
                self.state.commit(sampled.tokens, result.indices, num_planned, sampled.logprobs, step)
            if num_unmasked.any():
                yield

    def _measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        values = self.rule.measure(logits, probabilities)
        if self.certainty is not None:
            values["certainty"] = CERTAINTY_MEASURES[self.certainty](probabilities)
        return values

    def _count_candidates(self, num_planned: torch.LongTensor, blocks: torch.LongTensor) -> torch.LongTensor:
        """
        Return the number (batch,) of candidates, which are the first masked ranks of each sequence.

        They extend to the end of the block that contains the last planned rank. If `window` is set, there are at most
        `window` candidates, or the planned number if it is larger.
        """
        state = self.state
        ranks = torch.arange(blocks.shape[1], device=blocks.device)
        last = (state.num_context + num_planned - 1).clamp(min=0)
        is_masked = (ranks >= state.num_context[:, None]) & (ranks < state.ends[:, None])
        num_candidates = (is_masked & (blocks <= blocks.gather(1, last[:, None]))).sum(dim=-1)
        if self.window is not None:
            num_candidates = torch.maximum(num_planned, num_candidates.clamp(max=self.window))
        return torch.where(num_planned > 0, num_candidates, 0)

    def _commit_selected(
        self,
        result: QueryResult,
        sampled: SampledTokens,
        num_queries: torch.LongTensor,
        num_planned: torch.LongTensor,
        step: int,
    ) -> torch.LongTensor:
        """Unmask the candidates that the rule selects, and return their number (batch,). Tensors are (batch, width)."""
        state, device, width = self.state, result.ranks.device, int(num_queries.max())
        # 1. Store the predictions of all candidates at their masked ranks.
        state.draft(sampled.tokens, result.indices, sampled.logprobs)
        # 2. Sort the candidates of each sequence: by block, then by certainty. Columns without a candidate stay last.
        is_candidate = torch.arange(width, device=device) < to_device(num_queries, device)[:, None]
        measures = {name: state.arrange(values, result, width) for name, values in sampled.measures.items()}
        preference = torch.arange(width, device=device).expand_as(is_candidate)
        if self.certainty is not None:
            blocks = state.arrange(state.blocks[result.indices], result, width)
            preference = (-measures["certainty"]).argsort(dim=1, stable=True)
            preference = group_orders(preference, blocks.masked_fill(~is_candidate, state.ids.shape[1]))
        # 3. Select candidates.
        measures = {name: values.gather(1, preference) for name, values in measures.items()}
        is_selected = self.rule.select(step, Candidates(is_candidate, num_planned, measures))
        num_selected = is_selected.sum(dim=1).cpu() if self.rule.is_adaptive else num_planned
        # 4. Move the selected candidates to the front, and unmask them.
        may_move = self.certainty is not None or not self.rule.takes_leading
        if may_move and width > 1:
            state.reorder_masked(preference.gather(1, (~is_selected).long().argsort(dim=1, stable=True)))
        state.unmask(state.next_ranks(num_selected), num_selected, step)
        return num_selected
