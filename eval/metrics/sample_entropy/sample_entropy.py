# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Unigram entropy and distinct n-grams of samples, as a module for `evaluate.load`."""

import math
from collections.abc import Sequence

import datasets
import evaluate

from .diversity import distinct, unigram_entropy

_DESCRIPTION = """\
Diversity of samples. The unigram entropy of a sample, in nats, is the entropy of its token frequencies. The entropy is
low if the sample is repetitive, as samples at low temperatures are. distinct-n is the number of different n-grams in
all samples, divided by the number of all n-grams in all samples."""

_KWARGS_DESCRIPTION = """
Args:
    predictions: Samples. Each sample is a list of token ids, or a text; the tokens of a text are its words.
    max_n (int): Largest n of distinct-n (default: 3).

Returns:
    mean_entropy (float): Mean entropy of the samples in nats.
    entropies (list of float): Entropy of each sample.
    distinct_1 ... distinct_<max_n> (float): Fraction of different n-grams; None if all samples are shorter than n.

Examples:
    >>> metric = evaluate.load("eval/metrics/sample_entropy")
    >>> metric.compute(predictions=[[1, 2, 1, 2], [3, 3, 3, 3]])["entropies"]
    [0.6931471805599453, 0.0]
"""

_CITATION = """\
Zheng et al., Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate Categorical
Sampling, arXiv:2409.02908
Li et al., A Diversity-Promoting Objective Function for Neural Conversation Models, NAACL 2016"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class SampleEntropy(evaluate.Metric):
    """Unigram entropy and distinct n-grams of samples."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[
                datasets.Features({"predictions": datasets.Sequence(datasets.Value("int64"))}),
                datasets.Features({"predictions": datasets.Value("string")}),
            ],
        )

    def _compute(self, predictions: Sequence[Sequence[int] | str], max_n: int = 3) -> dict[str, float | list[float]]:
        samples = [sample.split() if isinstance(sample, str) else list(sample) for sample in predictions]
        entropies = [unigram_entropy(sample) for sample in samples]
        return {
            "mean_entropy": math.fsum(entropies) / len(entropies),
            "entropies": entropies,
            **{f"distinct_{n}": distinct(samples, n) for n in range(1, max_n + 1)},
        }
