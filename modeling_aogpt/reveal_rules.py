# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
How many of the queried positions a step reveals: as planned before the first pass, as many as their entropies allow, or
as the score of a SEDD has it.
"""

import math
from collections.abc import Iterator

import torch

from .canvas import Canvas
from .devices import draw_uniform, to_device
from .schedule import LARGEST_MASKED_SHARE, draw_reveal_steps, log_linear_noise, masked_fractions

# SEDD's sampler stops at this time, and reveals what is left in a last step.
LAST_TIME = 1e-5


class RevealRule:
    """Says `steps`, and of the candidates of a step which it `reveals`, perhaps by a `measure` of their predictions."""

    measure: str | None = None
    reveals_first: bool = True  # of the candidates, those that come first

    def noise_of(self, step: int) -> float | None:
        """The noise level at which a step looks at the sequences, if that is not as many masks as they have."""
        return None


class PlannedReveal(RevealRule):
    """
    Counts that are drawn before the first pass, see [`draw_reveal_steps`]; one position at a time without `num_steps`.

    What is revealed a second time, as in refinement, takes as many steps as its share of the first time.
    """

    def __init__(
        self, num_steps: int | None, schedule: str, reveal: str, generator: torch.Generator | None = None
    ) -> None:
        self.num_steps, self.schedule, self.reveal, self.generator = num_steps, schedule, reveal, generator
        self.num_hidden_at_first: int | None = None

    def steps(self, canvas: Canvas) -> Iterator[tuple[int, torch.LongTensor]]:
        """The steps that may reveal something, and how many ranks (batch,), on the CPU, each has to choose from."""
        most = int(canvas.num_hidden.max())
        self.num_hidden_at_first = self.num_hidden_at_first or most
        if self.num_steps is None:
            num_steps, reveal = most, "fixed"
        else:
            num_steps, reveal = math.ceil(self.num_steps * most / self.num_hidden_at_first), self.reveal
        plan = draw_reveal_steps(canvas.num_hidden, num_steps, self.schedule, reveal, self.generator)
        for step in range(num_steps):
            yield step, torch.minimum((plan == step).sum(dim=-1), canvas.num_hidden)

    def reveals(
        self,
        step: int,
        is_candidate: torch.BoolTensor,
        num_planned: torch.LongTensor,
        measures: dict[str, torch.Tensor],
    ) -> torch.BoolTensor:
        """Which candidates (batch, columns), in the order of preference, are revealed; `measures` are in it too."""
        columns = torch.arange(is_candidate.shape[1], device=is_candidate.device)
        return columns < to_device(num_planned, columns.device)[:, None]


class EntropyBoundedReveal(RevealRule):
    """
    As many positions as keep sum H - max H of their entropies, in nats, within `bound`, and at least one.

    That difference bounds how far (in Kullback-Leibler divergence) the joint distribution of the positions is from the
    product that they are drawn from (Ben-Hamu et al., arXiv 2505.24857).
    """

    measure = "entropy"

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def steps(self, canvas: Canvas) -> Iterator[tuple[int, torch.LongTensor]]:
        step = 0
        while canvas.num_hidden.any():
            yield step, canvas.num_hidden.clamp(max=1)
            step += 1

    def reveals(
        self,
        step: int,
        is_candidate: torch.BoolTensor,
        num_planned: torch.LongTensor,
        measures: dict[str, torch.Tensor],
    ) -> torch.BoolTensor:
        entropies = -measures["entropy"]
        joint = entropies.cumsum(dim=1) - entropies.cummax(dim=1).values
        is_revealed = joint <= self.bound + 1e-12  # one position has exactly 0, but for rounding
        is_revealed[:, 0] = True
        return is_candidate & is_revealed


class ScoreReveal(RevealRule):
    """
    Reverse steps of SEDD from the score s (arXiv 2310.16834): a masked position becomes y, in a step from t to t',

    * `"euler"`: with probability (t - t') sigma'(t) s_y, by the rate at which it does at time t;
    * `"analytic"`: with probability (e^(sigma(t) - sigma(t')) - 1) s_y, which is exact for the exact score of a
      single position (Tweedie tau-leaping).

    The sum over y is above 1 where a network overestimates the score: the position is then surely revealed. What is
    still hidden after the last step is revealed in another.
    """

    measure = "log_total_ratio"
    reveals_first = False

    def __init__(self, num_steps: int, schedule: str, rule: str, generator: torch.Generator | None) -> None:
        self.times = LAST_TIME + (1 - LAST_TIME) * masked_fractions(num_steps, schedule)
        self.rule, self.generator = rule, generator

    def steps(self, canvas: Canvas) -> Iterator[tuple[int, torch.LongTensor]]:
        for step in range(len(self.times)):
            yield step, canvas.num_hidden

    def noise_of(self, step: int) -> float:
        return log_linear_noise(self.times[step]).item()

    def reveals(
        self,
        step: int,
        is_candidate: torch.BoolTensor,
        num_planned: torch.LongTensor,
        measures: dict[str, torch.Tensor],
    ) -> torch.BoolTensor:
        if step == len(self.times) - 1:
            return is_candidate
        time, next_time = self.times[step].item(), self.times[step + 1].item()
        sigma = self.noise_of(step)
        total_score = measures["log_total_ratio"].exp() / math.expm1(sigma)
        if self.rule == "euler":
            rate = LARGEST_MASKED_SHARE / (1 - LARGEST_MASKED_SHARE * time)
            probability = (time - next_time) * rate * total_score
        else:
            probability = math.expm1(sigma - log_linear_noise(self.times[step + 1]).item()) * total_score
        draws = draw_uniform(*probability.shape, generator=self.generator, device=probability.device)
        return is_candidate & (draws < probability)
