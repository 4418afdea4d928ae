# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What likelihoods return, and the standard errors of their estimates."""

from dataclasses import dataclass
from numbers import Integral

import torch
from transformers.utils import ModelOutput


@dataclass
class LogLikelihoodOutput(ModelOutput):
    """
    Args:
        log_likelihood (`torch.Tensor` of shape `(batch,)`): log p(x | order) in nats, averaged over orders; or the
            estimate of such an average.
        token_log_likelihood (`torch.Tensor` of shape `(batch, n)`): The share of each token, in place; 0 where nothing
            was scored. The shares of a sequence sum to its `log_likelihood`.
        standard_error (`torch.Tensor` of shape `(batch,)`): Of that average or estimate: 0 where nothing is random, NaN
            where a single draw tells nothing about the spread.
        importance_weighted (`torch.Tensor` of shape `(batch,)`): log (1/K) sum_k p(x | order k) over the K orders. Its
            mean, too, is a lower bound on the log-likelihood under the mixture of all orders, and the tighter the more
            orders there are. None where p itself is not computed, but only an estimate of its logarithm.
        num_rows (`int`): Rows computed by the model, for all sequences together.
    """

    log_likelihood: torch.FloatTensor | None = None
    token_log_likelihood: torch.FloatTensor | None = None
    standard_error: torch.FloatTensor | None = None
    importance_weighted: torch.FloatTensor | None = None
    num_rows: int | None = None


def check_finite(log_likelihood: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises a `ValueError` if the log-likelihood (..., batch) of a sequence is not finite."""
    wrong = ~torch.isfinite(log_likelihood.reshape(-1, log_likelihood.shape[-1])).all(dim=0)
    if wrong.any():
        raise ValueError(
            f"The log-likelihood of sequence {int(wrong.nonzero()[0])} is not finite. Check the weights, and the dtype "
            f"they were loaded in ({dtype})."
        )


def standard_error_of_mean(values: torch.Tensor) -> torch.Tensor:
    """Of independent draws (draws, batch) -> (batch,); NaN for a single one."""
    if len(values) == 1:
        return torch.full_like(values[0], torch.nan)
    return values.std(dim=0) / len(values) ** 0.5


def standard_error_of_pairs(values: torch.Tensor) -> torch.Tensor:
    """
    Of the mean of stratified draws (draws, batch), of which the two of each stratum follow each other: half the
    difference of a pair, squared, has the variance of its mean as expectation.
    """
    differences = values[0::2] - values[1::2]
    return differences.square().sum(dim=0).sqrt() / len(values)


def check_count(name: str, number: int) -> None:
    """Raises a `ValueError` unless the argument of this name is an integer of at least 1."""
    if not isinstance(number, Integral) or number < 1:
        raise ValueError(f"{name}={number!r} must be an integer of at least 1.")


def check_pairs(name: str, number: int) -> None:
    """Raises a `ValueError` unless a number of draws can be two in each stratum."""
    check_count(name, number)
    if number % 2:
        raise ValueError(
            f"{name}={number} must be even and at least 2: two draws in each stratum tell the standard error."
        )
