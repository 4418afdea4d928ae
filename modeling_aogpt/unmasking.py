# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Unmasking: samplers that fill in positions, several per step or by speculative decoding.

A schedule is a grid of diffusion times. In each step, the model predicts the tokens of some masked positions, the
candidates. An unmasking rule decides which candidates the step unmasks. Many rules unmask a given number of the first
candidates. With an adaptive order, a certainty measure decides which come first. `ParallelSampler` runs the steps.

`SpeculativeSampler` is exact in any order. In each round, tokens of the next ranks are drafted, each from some
distribution q. One pass over the drafts as a causal chain gives p, the model's distribution of each token given the
tokens of all earlier ranks. A draft is accepted with probability min(1, p / q), where p and q are the probabilities of
the draft. The first rejected draft is replaced by a token that is drawn from the normalized positive part of p - q.
Later drafts are discarded. The result is an exact sample of p(x | order) for every q (Leviathan et al., arXiv
2211.17192, appendix A.1).
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from transformers.generation import GenerationConfig

from .decoding_state import DecodingState, QueryResult, leading_indices
from .devices import draw_uniform, to_device
from .orders import group_orders, index_by_position
from .sampling import SampledTokens, TokenSampler, draw_tokens

SCHEDULES = ("linear", "cosine")
SCORE_UNMASKING = ("euler", "analytic")
ADAPTIVE_UNMASKING = ("entropy_bound", "threshold")
UNMASKING = ("bernoulli", "fixed_count", *ADAPTIVE_UNMASKING, *SCORE_UNMASKING)

# The log-linear noise of SEDD masks at most this fraction of the tokens.
MAX_MASKED_FRACTION = 1 - 1e-3

# SEDD's sampler stops at this diffusion time, and unmasks the remaining positions in one more step.
LAST_TIME = 1e-5

# Largest number of neighbours on each side of a position that prompt lookup compares.
LOOKUP_REACH = 3


# --------------------------------------------------------------------------------------------------------- schedules


def log_linear_noise(times: torch.Tensor) -> torch.Tensor:
    """Return the noise level sigma(t) = -log(1 - (1 - eps) t) at diffusion times t in [0, 1], with eps = 1e-3.

    At this level a token is masked with probability 1 - e^-sigma = (1 - eps) t (SEDD, arXiv 2310.16834).
    """
    return -torch.log1p(-MAX_MASKED_FRACTION * times)


def masked_fractions(num_steps: int, schedule: str) -> torch.Tensor:
    """Return the grid 1 = t_0 > t_1 > ... > t_T = 0 of expected masked fractions, float64 of shape (T + 1,).

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
    """Draw the number of ranks that each step unmasks, for sequences with `num_masked` (batch,) masked ranks.

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
    """Rule that decides which positions a step unmasks.

    For each step, a rule first plans the number of ranks to unmask. The model then predicts the tokens at some masked
    positions, the candidates. By default, the step unmasks the planned number of candidates, starting with the first. A
    subclass can also select candidates by their predictions.
    """

    is_adaptive = False  # whether the number of ranks that a step unmasks depends on predictions
    takes_leading = True  # whether the selected candidates are always the first ones

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """Yield the index of each step and the planned number of ranks to unmask, (batch,) on the CPU."""
        raise NotImplementedError

    def noise_level(self, step: int) -> float | None:
        """Return the noise level for SEDD, or None if the model must compute it from the fraction of masked tokens."""
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
    """Rule that draws the numbers of ranks for all steps before the first pass (see [`draw_step_sizes`]).

    For refinement, the number of steps is reduced in proportion to the number of masked ranks.
    """

    def __init__(self, num_steps: int | None, schedule: str, unmasking: str, generator: torch.Generator | None) -> None:
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
    """Base class of rules that unmask one or more positions per step. `bound` is `entropy_bound` or `threshold`."""

    is_adaptive = True

    def __init__(self, bound: float) -> None:
        self.bound, self._step = bound, 0

    def steps(self, state: DecodingState) -> Iterator[tuple[int, torch.LongTensor]]:
        """Yield steps, each with a plan of one rank per unfinished sequence, until no rank is masked."""
        while state.num_masked.any():
            yield self._step, state.num_masked.clamp(max=1)
            self._step += 1


class EntropyBoundUnmasking(AdaptiveUnmasking):
    """Rule that unmasks as many of the first candidates as the entropy bound allows, and at least one.

    The sum of the entropies of these candidates minus the largest entropy is at most `bound` nats. This difference
    bounds the Kullback-Leibler divergence between the joint distribution of the tokens and the product of the
    distributions from which they are drawn (arXiv 2505.24857), at temperature 1 and without truncation. (Entropies are
    computed before temperature and truncation are applied.)
    """

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the entropy of each prediction in nats."""
        return {"entropy": -negative_entropy(probabilities)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Select the first candidates, as far as the bound allows."""
        entropies = candidates.measures["entropy"]
        total_correlation_bound = entropies.cumsum(dim=1) - entropies.cummax(dim=1).values
        is_selected = total_correlation_bound <= self.bound + 1e-12  # allow for rounding
        is_selected[:, 0] = True
        return candidates.is_candidate & is_selected


class ThresholdUnmasking(AdaptiveUnmasking):
    """Rule that unmasks every candidate whose likeliest token has at least the probability `bound`.

    If there is no such candidate, it unmasks the first candidate (Fast-dLLM, arXiv 2505.22618, section 3.3).
    """

    takes_leading = False

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the probability of the likeliest token of each prediction."""
        return {"confidence": confidence(probabilities)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Select all confident candidates, or else the first candidate."""
        is_candidate, measures = candidates.is_candidate, candidates.measures
        is_selected = is_candidate & (measures["confidence"] >= self.bound)
        is_selected[:, 0] |= is_candidate[:, 0] & ~is_selected.any(dim=1)
        return is_selected


class ScoreUnmasking(UnmaskingRule):
    """Rule of SEDD's samplers, which unmask positions with probabilities given by the score s (arXiv 2310.16834).

    The score s_y is a predicted ratio of probabilities at time t: of the sequence with token y at a masked position, to
    the sequence with the mask at this position. sigma(t) is the noise level (see [`log_linear_noise`]). In a step from
    diffusion time t to the lower time t', a masked position becomes token y

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
        """Yield the steps of the schedule, and one for the remaining ranks. All masked ranks are always candidates."""
        for step in range(len(self.times)):
            yield step, state.num_masked

    def noise_level(self, step: int) -> float:
        """Return the noise level at the beginning of the step."""
        return log_linear_noise(self.times[step]).item()

    def measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the log of the sum of all scores s_y of each query, without the factor 1 / (e^sigma - 1)."""
        return {"log_total": logits.double().logsumexp(dim=-1) - math.log(self.num_tokens)}

    def select(self, step: int, candidates: Candidates) -> torch.BoolTensor:
        """Select candidates at random, by their scores."""
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


def make_rule(config: GenerationConfig, num_tokens: int, generator: torch.Generator | None) -> UnmaskingRule:
    """Return the rule that `config.unmasking` names, for a model with `num_tokens` ids of text."""
    if config.unmasking == "entropy_bound":
        return EntropyBoundUnmasking(config.entropy_bound)
    if config.unmasking == "threshold":
        return ThresholdUnmasking(config.threshold)
    if config.unmasking in SCORE_UNMASKING:
        return ScoreUnmasking(config.num_steps, config.schedule, config.unmasking, num_tokens, generator)
    return ScheduledUnmasking(config.num_steps, config.schedule, config.unmasking, generator)


# -------------------------------------------------------------------------------------------------- parallel sampling


class ParallelSampler:
    """Sampler that unmasks one or several positions per forward pass.

    The tokens of a step are drawn independently of each other, given all tokens that were unmasked before. With
    `certainty`, a name in `CERTAINTY_MEASURES`, the candidates with the highest certainty come first. With `certainty`
    or an adaptive rule, the first `window` masked ranks of the block are candidates, or the planned ranks if these are
    more. Otherwise, only the planned ranks are candidates.
    """

    def __init__(self, sampler: TokenSampler, rule: UnmaskingRule, certainty: str | None, window: int | None) -> None:
        self.state, self.rule, self.sampler = sampler.state, rule, sampler
        self.certainty, self.window = certainty, window
        self.needs_measures = certainty is not None or rule.is_adaptive

    def run(self) -> Iterator[None]:
        """Unmask all masked positions. Yield after each step that unmasked at least one position."""
        # The block of each rank (batch, n). Candidates move only within their block, so it does not change.
        blocks = self.state.blocks.cpu() if self.needs_measures else None
        for step, num_planned in self.rule.steps(self.state):
            num_queries = num_planned if blocks is None else self._count_candidates(num_planned, blocks)
            if not num_queries.any():
                continue  # no forward pass
            if self.needs_measures:
                sigma = self.rule.noise_level(step)
                result = self.state.query(num_queries) if sigma is None else self.state.query(num_queries, sigma)
                sampled = self.sampler.sample(result, self._measure)
                num_unmasked = self._commit_selected(result, sampled, num_queries, num_planned, step)
            else:
                num_unmasked = num_planned
                self.sampler.fill_in(num_planned, step)
            if num_unmasked.any():
                yield

    def _measure(self, logits: torch.Tensor, probabilities: torch.Tensor) -> dict[str, torch.Tensor]:
        values = self.rule.measure(logits, probabilities)
        if self.certainty is not None:
            values["certainty"] = CERTAINTY_MEASURES[self.certainty](probabilities)
        return values

    def _count_candidates(self, num_planned: torch.LongTensor, blocks: torch.LongTensor) -> torch.LongTensor:
        """Return the number (batch,) of candidates: masked ranks up to the end of the last planned rank's block."""
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
        state.store(sampled.tokens, result.indices, sampled.logprobs)
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


# ------------------------------------------------------------------------------------------------- speculative decoding


class Drafts(NamedTuple):
    """Drafted tokens for the first masked ranks of each sequence."""

    tokens: torch.LongTensor  # (batch, width): column j belongs to the j-th masked rank
    distributions: torch.Tensor  # (batch, width + 1, vocab_size): q of each draft; 0 after the last draft
    counts: torch.LongTensor  # (batch,): number of drafts of each sequence, on the CPU
    num_certain: int  # number of first drafts of a sequence that cannot be rejected, because q equals p


def draft_by_model(sampler: TokenSampler, max_drafts: torch.LongTensor) -> Drafts:
    """Draft `max_drafts[b]` tokens for each sequence b, independently, with a parallel query of the model itself."""
    state, width = sampler.state, int(max_drafts.max())
    result = state.query(max_drafts)
    distributions = state.arrange(sampler.distributions(result), result, width + 1)
    indices = leading_indices(max_drafts, distributions.device)
    tokens = torch.zeros(len(max_drafts), width, dtype=torch.long, device=distributions.device)
    tokens[indices] = draw_tokens(distributions[indices], sampler.generator)
    return Drafts(tokens, distributions, max_drafts, num_certain=1)


def draft_by_prompt_lookup(sampler: TokenSampler, max_drafts: torch.LongTensor) -> Drafts:
    """Draft up to `max_drafts[b]` tokens for each sequence b. Copy them from the unmasked text, without a forward pass.

    The draft for a target position is the token of the unmasked position whose neighbours agree best with the target's.
    The agreement of two positions is the number of equal unmasked neighbours on the left, counted up to the first
    difference and at most `LOOKUP_REACH`, plus the number on the right, counted in the same way. If several positions
    agree best, the last one is taken. In left-to-right order, this is a lookup of the longest n-gram. Drafting stops at
    the first target for which no neighbour agrees. Each draft has probability 1 in its distribution.
    """
    state, device = sampler.state, sampler.state.ids.device
    width, batch_size = int(max_drafts.max()), len(max_drafts)
    context = to_device(state.num_context, device)
    # Masked positions are -1, which never matches. Each draft is added to `text`, so later drafts can match it.
    is_unmasked = state.ranks_between(torch.zeros_like(state.num_context), state.num_context)
    text = index_by_position(state.ids.masked_fill(~is_unmasked, -1), state.orders)
    tokens = torch.zeros(batch_size, width, dtype=torch.long, device=device)
    is_active = torch.ones(batch_size, dtype=torch.bool, device=device)
    counts = torch.zeros(batch_size, dtype=torch.long, device=device)
    rows = torch.arange(batch_size, device=device)
    for column in range(width):
        targets = state.orders[rows, (context + column).clamp(max=text.shape[1] - 1)]
        found, is_found = look_up(text, targets)
        is_active &= is_found & (column < to_device(max_drafts, device))
        tokens[:, column] = torch.where(is_active, found, 0)
        text[rows, targets] = torch.where(is_active, found, text[rows, targets])
        counts += is_active
    is_draft = torch.arange(width, device=device) < counts[:, None]
    shape = batch_size, width + 1, state.model.config.vocab_size
    distributions = torch.zeros(shape, dtype=torch.float64, device=device)
    distributions[:, :width].scatter_(2, tokens[..., None], is_draft[..., None].double())
    return Drafts(tokens, distributions, counts.cpu(), num_certain=0)


def look_up(text: torch.LongTensor, targets: torch.LongTensor) -> tuple[torch.LongTensor, torch.BoolTensor]:
    """Return the token (batch,) with the most neighbours in common with the target, and whether there are any.

    `text` (batch, n) has -1 at masked positions. `targets` has shape (batch,).
    """
    length = text.shape[1]
    padded = torch.nn.functional.pad(text, (LOOKUP_REACH, LOOKUP_REACH), value=-1)
    agreement = torch.zeros_like(text)
    for direction in (-1, 1):
        is_same = torch.ones_like(text, dtype=torch.bool)
        for distance in range(1, LOOKUP_REACH + 1):
            shift = LOOKUP_REACH + direction * distance
            neighbours = padded[:, shift : shift + length]
            wanted = padded.gather(1, (targets + shift)[:, None])
            is_same &= (neighbours == wanted) & (wanted >= 0)
            agreement += is_same
    positions = torch.arange(length, device=text.device)
    best = (agreement * (text >= 0) * length + positions).masked_fill(text < 0, -1).argmax(dim=1, keepdim=True)
    is_found = (agreement.gather(1, best) > 0) & (text.gather(1, best) >= 0)
    return text.gather(1, best).squeeze(1), is_found.squeeze(1)


# Sources of drafts. The keys are values of `draft` in `generate`.
DRAFTS = {"model": draft_by_model, "prompt_lookup": draft_by_prompt_lookup}


class SpeculativeSampler:
    """Sampler for decoders that drafts at most `draft_length` tokens, and verifies these drafts.

    A round takes one pass to verify drafts, and with drafts of the model another pass to make them. It unmasks at
    least one token of each unfinished sequence, and with drafts of the model, at least two if two are left. There are
    thus never more passes than tokens to fill in.
    """

    def __init__(
        self, sampler: TokenSampler, draft: Callable[[TokenSampler, torch.LongTensor], Drafts], draft_length: int
    ) -> None:
        self.state, self.sampler, self.draft, self.draft_length = sampler.state, sampler, draft, draft_length
        # Numbers of drafts and of accepted drafts over all rounds, without those that cannot be rejected.
        self.num_drafts = self.num_accepted = 0
        self._step = 0

    def run(self) -> Iterator[None]:
        """Run rounds until no position is masked, and yield after each round. A round is a step."""
        while self.state.num_masked.any():
            self._run_round()
            self._step += 1
            yield

    def _run_round(self) -> None:
        state, generator, device = self.state, self.sampler.generator, self.state.ids.device
        # 1. Draft tokens. Column j stands for the j-th masked rank of a sequence. An additional last column is for the
        # token that is drawn if all drafts are accepted.
        drafts = self.draft(self.sampler, state.num_masked.clamp(max=self.draft_length))
        tokens = torch.nn.functional.pad(drafts.tokens, (0, 1))
        is_draft = torch.arange(tokens.shape[1], device=device) < to_device(drafts.counts, device)[:, None]
        state.ids[state.next_ranks(drafts.counts)] = tokens[leading_indices(drafts.counts, device)]
        # 2. Compute the model's distributions given the drafts.
        verified = self._verify(drafts)
        # 3. Accept each draft with probability min(1, p / q), up to the first rejection.
        p, q = (values.gather(2, tokens[..., None]).squeeze(2) for values in (verified, drafts.distributions))
        uniform = draw_uniform(*p.shape, generator=generator, device=device)
        is_accepted = is_draft & ~(uniform >= p / q)  # NaN is accepted here, and reported later by `generate`
        num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1).cpu()
        # 4. Draw one more token from the positive part of p - q, where q is 0 after the last draft.
        has_more = state.num_masked > num_accepted
        selected = to_device(has_more.nonzero().squeeze(1), device), to_device(num_accepted[has_more], device)
        remainder = (verified[selected] - drafts.distributions[selected]).clamp(min=0)
        tokens[selected] = draw_tokens(remainder, generator)
        # 5. Commit these tokens.
        num_unmasked = num_accepted + has_more
        committed = leading_indices(num_unmasked, device)
        logprobs = verified[committed].gather(1, tokens[committed][:, None]).log().squeeze(1)
        state.commit(tokens[committed], state.next_ranks(num_unmasked), num_unmasked, logprobs, self._step)
        state.keep_verified()
        self.num_drafts += int((drafts.counts - drafts.num_certain).clamp(min=0).sum())
        self.num_accepted += int((num_accepted - drafts.num_certain).clamp(min=0).sum())

    def _verify(self, drafts: Drafts) -> torch.Tensor:
        """Return p (batch, width + 1, vocab_size) at the rank of every draft and at the rank after the last draft."""
        skips_first = drafts.num_certain > 0
        if skips_first and int(drafts.counts.max()) == 1:
            return drafts.distributions
        result = self.state.verify(drafts.counts, include_first=not skips_first)
        distributions = self.sampler.distributions(result, num_visible=result.ranks)
        verified = self.state.arrange(distributions, result, drafts.distributions.shape[1])
        if skips_first:
            verified[:, 0] = drafts.distributions[:, 0]
        return verified
