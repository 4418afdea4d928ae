# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The masked-diffusion bound on the log-likelihood (Eq. 1) by Monte Carlo, for any model that predicts hidden tokens:

    log p(x) >= - integral over t in (0, 1] of (1/t) E[ sum over hidden i of -log p(x_i | x_t) ],

where each token is hidden with probability t. Hiding a uniform number of tokens instead, k of n, with the weight n / k,
has the same mean for a model that is not told t (second line of Eq. 2) and less spread.
"""

from collections.abc import Callable

import torch

from .devices import draw_uniform
from .likelihood_output import LogLikelihoodOutput, check_pairs, standard_error_of_pairs
from .orders import token_positions

MASKINGS = ("bernoulli", "fixed")

# log p (batch, n) in place of the tokens that are hidden (batch, n), 0 elsewhere, at times (batch,).
HiddenScores = Callable[[torch.BoolTensor, torch.Tensor], torch.Tensor]


def stratified(
    num_draws: int, batch_size: int, generator: torch.Generator | None, device: torch.device | str | None
) -> torch.Tensor:
    """Uniform numbers in [0, 1), float64 (num_draws, batch): two independent ones in each of num_draws / 2 strata."""
    draws = draw_uniform(num_draws, batch_size, generator=generator, device=device)
    strata = torch.arange(num_draws, device=device) // 2
    return (strata[:, None] + draws) / (num_draws // 2)


def hide(
    is_target: torch.BoolTensor, times: torch.Tensor, masking: str, generator: torch.Generator | None
) -> tuple[torch.BoolTensor, torch.Tensor]:
    """
    Which targets (batch, n) are hidden at times (batch,) in (0, 1], at least one, and the weights (batch,) of their
    scores.
    """
    num_targets = is_target.sum(dim=-1)
    draws = draw_uniform(*is_target.shape, generator=generator, device=is_target.device)
    if masking == "fixed":
        num_hidden = (times * num_targets).ceil().clamp(min=1)
        ranks = draws.masked_fill(~is_target, 1.0).argsort(dim=-1).argsort(dim=-1)
        return (ranks < num_hidden[:, None]) & is_target, num_targets / num_hidden
    # Each with probability t, given that any is. To hide none, at the weight of 1 / t, would cost a pass for nothing,
    # and the variance would be infinite: the chance of a single one, n t, goes down slower than the weight's square up.
    log_kept = torch.log1p(-times)
    share_of_any = -torch.expm1(num_targets * log_kept)
    first_draw = draw_uniform(len(times), generator=generator, device=times.device)
    first = (torch.log1p(-first_draw * share_of_any) / log_kept).floor().clamp(max=num_targets - 1)
    ranks, first = token_positions(is_target), first[:, None]
    is_hidden = (ranks == first) | ((ranks > first) & (draws < times[:, None]))
    return is_hidden & is_target, share_of_any / times


def diffusion_bound(
    score: HiddenScores,
    is_target: torch.BoolTensor,
    num_times: int,
    masking: str,
    generator: torch.Generator | None,
) -> LogLikelihoodOutput:
    """
    The bound from `num_times` stratified times, two in each stratum, for each sequence on its own.

    Args:
        score (`HiddenScores`): Of the model.
        is_target (`torch.BoolTensor` of shape `(batch, n)`): What is scored, and hidden at some times: all tokens, or
            those that are asked for given others.
        num_times (`int`): Even.
        masking (`str`): `"bernoulli"`: each is hidden with probability t (Eq. 1), given that any is; `"fixed"`: exactly
            ceil(t n) of n are (Eq. 2).
        generator (`torch.Generator`, *optional*): Of times and hidden tokens.
    """
    check_pairs("num_times", num_times)
    if masking not in MASKINGS:
        raise ValueError(f"masking={masking!r} is not one of {', '.join(map(repr, MASKINGS))}.")
    shares = torch.zeros(is_target.shape, dtype=torch.float64, device=is_target.device)
    draws = []
    for times in 1 - stratified(num_times, len(is_target), generator, is_target.device):
        is_hidden, weights = hide(is_target, times, masking, generator)
        scores = score(is_hidden, times) * weights[:, None]
        shares += scores / num_times
        draws.append(scores.sum(dim=-1))
    return LogLikelihoodOutput(
        log_likelihood=shares.sum(dim=-1),
        token_log_likelihood=shares,
        standard_error=standard_error_of_pairs(torch.stack(draws)),
    )
