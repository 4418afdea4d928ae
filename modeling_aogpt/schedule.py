# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rank of an order is revealed at which step of the reverse process, and how noisy each step is."""

import math

import torch

from .devices import draw_uniform

SCHEDULES = ("linear", "cosine")
SCORE_RULES = ("euler", "analytic")
REVEAL_RULES = ("bernoulli", "fixed", "entropy_bounded", *SCORE_RULES)

# The log-linear noise of SEDD masks at most this share of the tokens.
LARGEST_MASKED_SHARE = 1 - 1e-3


def log_linear_noise(times: torch.Tensor) -> torch.Tensor:
    """
    The noise level sigma(t) = -log(1 - (1 - eps) t) at times from 0 to 1, eps = 1e-3: a token is masked with
    probability 1 - e^-sigma = (1 - eps) t (SEDD, arXiv 2310.16834).
    """
    return -torch.log1p(-LARGEST_MASKED_SHARE * times)


def masked_fractions(num_steps: int, schedule: str) -> torch.Tensor:
    """
    The grid 1 = t_0 > t_1 > ... > t_T = 0 of expected masked fractions, float64 (T + 1,).

    `"linear"`: t_k = 1 - k / T (the paper's). `"cosine"`: t_k = cos(pi k / 2T), which reveals few positions per step at
    first and more when much is known (MaskGIT, arXiv 2202.04200, section 3.2).
    """
    progress = torch.arange(num_steps + 1, dtype=torch.float64, device="cpu") / num_steps
    fractions = {"linear": 1 - progress, "cosine": torch.cos(progress * math.pi / 2)}[schedule]
    fractions[-1] = 0.0
    return fractions


def draw_reveal_steps(
    num_hidden: torch.LongTensor,
    num_steps: int,
    schedule: str,
    reveal: str,
    generator: torch.Generator | None = None,
) -> torch.LongTensor:
    """
    The steps at which the hidden positions of each sequence are revealed, in order.

    `"bernoulli"` is Lemma 4.1 over the whole grid: every hidden position draws its step on its own, step k (from 1)
    with probability t_{k-1} - t_k; steps that nobody drew cost nothing. The positions being exchangeable under a
    uniform order, sorting the draws and revealing in that order is the same, and gives a meaning to the rule under any
    other. `"fixed"` reveals after step k the first floor(m (1 - t_k)) of m positions, at least one more than before,
    until there are none (the authors' code).

    Args:
        num_hidden (`torch.LongTensor` of shape `(batch,)`): Hidden positions m of each sequence.
        num_steps (`int`): Steps T of the grid.
        schedule (`str`): One of `SCHEDULES`.
        reveal (`str`): `"bernoulli"` or `"fixed"`.
        generator (`torch.Generator`, *optional*): Of the draws.

    Returns:
        `torch.LongTensor` (batch, max(num_hidden)) on the CPU: row b holds m_b non-decreasing steps from 0 ... T - 1,
        then T.
    """
    num_hidden = num_hidden.cpu()
    longest = int(num_hidden.max())
    fractions = masked_fractions(num_steps, schedule)
    if reveal == "bernoulli":
        draws = draw_uniform(len(num_hidden), longest, generator=generator, device="cpu")
        # Step k holds the draws in [1 - t_k, 1 - t_{k+1}).
        steps = torch.bucketize(draws, 1 - fractions[1:-1], right=True)
    else:
        steps = torch.stack([_fixed_steps(int(hidden), fractions, longest) for hidden in num_hidden])
    is_beyond = torch.arange(longest, device=num_hidden.device) >= num_hidden[:, None]
    return steps.masked_fill(is_beyond, num_steps).sort(dim=-1).values


def _fixed_steps(num_hidden: int, fractions: torch.Tensor, length: int) -> torch.LongTensor:
    steps = torch.zeros(length, dtype=torch.long, device="cpu")
    revealed = 0
    for step, fraction in enumerate(fractions[1:].tolist()):
        # Rounding errors of the grid must not push an exact count below itself.
        after = min(num_hidden, max(math.floor(num_hidden * (1 - fraction) + 1e-9), revealed + 1))
        steps[revealed:after] = step
        revealed = after
    return steps
