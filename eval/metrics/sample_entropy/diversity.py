# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Unigram entropy and distinct n-grams of samples. This file needs no other library."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def unigram_entropy(tokens: Sequence[Hashable]) -> float:
    """Return the entropy of the token frequencies of a sample, in nats. The entropy of an empty sample is 0."""
    frequencies = [count / len(tokens) for count in Counter(tokens).values()]
    return -math.fsum(frequency * math.log(frequency) for frequency in frequencies) + 0.0  # turns -0.0 into 0.0


def distinct(samples: Sequence[Sequence[Hashable]], n: int) -> float | None:
    """Return the number of distinct n-grams divided by the number of all n-grams, or None if there are no n-grams."""
    ngrams = [tuple(tokens[start : start + n]) for tokens in samples for start in range(len(tokens) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else None
