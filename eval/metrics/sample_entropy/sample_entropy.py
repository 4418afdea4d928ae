# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Unigram entropy and distinct n-grams of samples, as a module for `evaluate.load`."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import datasets
import evaluate

_DESCRIPTION = """\
How varied samples are. The unigram entropy of a sample, in nats, is that of the frequencies of its own tokens: it falls
when a sample repeats itself, which is how low temperatures buy generative perplexity. distinct-n is the share of
different n-grams among all n-grams of all samples."""

_KWARGS_DESCRIPTION = """
Args:
    predictions: samples, each a list of token ids, or a text, whose tokens are then the words between blanks.
    max_n (int): the largest n of distinct-n, 3 unless given.

Returns:
    mean_entropy (float): mean of the samples' entropies, in nats.
    entropies (list of float): of each sample.
    distinct_1 ... distinct_<max_n> (float): share of different n-grams; NaN where there is none.

Examples:
    >>> metric = evaluate.load("eval/metrics/sample_entropy")
    >>> metric.compute(predictions=[[1, 2, 1, 2], [3, 3, 3, 3]])["entropies"]
    [0.6931471805599453, 0.0]
"""

_CITATION = """\
@misc{zheng2024masked,
  title  = {Masked Diffusion Models are Secretly Time-Agnostic Masked Models and Exploit Inaccurate Categorical
            Sampling},
  author = {Kaiwen Zheng and Yongxin Chen and Hanzi Mao and Ming-Yu Liu and Jun Zhu and Qinsheng Zhang},
  year   = {2024},
  note   = {arXiv:2409.02908}
}
@inproceedings{li2016diversity,
  title     = {A Diversity-Promoting Objective Function for Neural Conversation Models},
  author    = {Jiwei Li and Michel Galley and Chris Brockett and Jianfeng Gao and Bill Dolan},
  booktitle = {NAACL},
  year      = {2016}
}"""


def unigram_entropy(tokens: Sequence[Hashable]) -> float:
    """Entropy, in nats, of the frequencies of the tokens of one sample; 0 for an empty one."""
    shares = [count / len(tokens) for count in Counter(tokens).values()]
    return -math.fsum(share * math.log(share) for share in shares) + 0.0  # no negative zero


def distinct(samples: Sequence[Sequence[Hashable]], n: int) -> float:
    """Share of different n-grams among all n-grams inside the samples; NaN if all samples are shorter than n."""
    ngrams = [tuple(tokens[start : start + n]) for tokens in samples for start in range(len(tokens) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else math.nan


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class SampleEntropy(evaluate.Metric):
    """Of samples, without references."""

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
