# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""How certain a distribution is of its token: the measures by which adaptive orders choose what to reveal first."""

import torch


def confidence(probabilities: torch.Tensor) -> torch.Tensor:
    """The probability of the likeliest token, (rows,) from (rows, vocab) (MaskGIT, arXiv 2202.04200, section 3.2)."""
    return probabilities.amax(dim=-1)


def margin(probabilities: torch.Tensor) -> torch.Tensor:
    """How much likelier the likeliest token is than the next, (rows,) (arXiv 2502.06768)."""
    first, second = probabilities.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second


def negative_entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Minus the entropy in nats, (rows,): what one expects to be told by the token (arXiv 2505.24857)."""
    return torch.special.xlogy(probabilities, probabilities).sum(dim=-1)


CERTAINTIES = {"confidence": confidence, "margin": margin, "entropy": negative_entropy}
