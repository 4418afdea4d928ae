# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Generative perplexity (the perplexity of samples under any causal language model), and the diversity of samples."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from common.models import identity_of_weights
from common.results import default_length
from common.tokenizers import num_unpadded
from eval.estimates import perplexity_over, ratio_with_error
from eval.journal import score_sequences
from eval.scorers import CausalScorer, check_causal
from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.loading import load_pretrained

MAX_LENGTH = 1024  # longest sample, in tokens, for a judge without a maximum


@dataclass
class Sample:
    """A sample of a model: its token ids, and its text, which includes end-of-text tokens."""

    ids: list[int]
    text: str


class Judge:
    """A causal language model that scores samples.

    If the judge has the same tokenizer as the model of the samples, it scores their ids. Otherwise, it encodes their
    text with its own tokenizer.
    """

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        try:
            model = load_pretrained(AutoModelForCausalLM, name, dtype=dtype).to(device).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            cause, *_ = str(error).split("\n")  # other lines may list hundreds of model types
            raise ValueError(
                f"The judge {name!r} cannot be loaded from the Hub or a folder. Set `judge` to a causal language model "
                f"with a tokenizer. (Cause: {cause})"
            ) from error
        check_causal(model, name)
        self.name, self.weights = name, identity_of_weights(name)
        self.scorer = CausalScorer(model)
        self.longest = default_length(name, model.config) or MAX_LENGTH

    def encode(self, samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Return the judge's token ids for samples. `tokenizer` belongs to the model that generated the samples."""
        pair = (tokenizer, self.tokenizer)  # compared without mask tokens, which samples do not contain
        mine, others = (one.get_vocab().items() - {(one.mask_token, one.mask_token_id)} for one in pair)
        if mine == others:
            return [sample.ids for sample in samples]
        end_of_text = self.tokenizer.eos_token or "\n"
        texts = [sample.text.replace(tokenizer.eos_token, end_of_text) for sample in samples]
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def perplexity(self, sequences: Sequence[list[int]], batch_size: int) -> dict[str, Any]:
        """Return the generative perplexity of samples, given as the judge's ids. The first token of each is not scored.

        The result is a dictionary with these keys:

        * `mean`: Mean of the perplexities of the samples.
        * `pooled`: Perplexity over all tokens, to which long samples contribute more.
        * `mean_standard_error`, `pooled_standard_error`: Their standard errors; None if there is only one value.
        * `perplexities`: Perplexity of each sample; None if it has fewer than two tokens.
        * `unjudged`: Number of samples with fewer than two tokens.
        * `truncated`: Number of samples that were cut to the judge's maximum length.
        """
        judged = [index for index, ids in enumerate(sequences) if len(ids) > 1]
        if not judged:
            raise ValueError(
                f"A perplexity needs a sample of at least two tokens, but all {len(sequences)} samples are shorter. "
                "Generate longer samples."
            )
        cut = [sequences[index][: self.longest] for index in judged]
        nats = score_sequences(self.scorer, cut, "left_to_right", 1, 0, batch_size, name="Judging")
        counts = np.array([len(ids) - 1 for ids in cut])
        perplexities, pooled = np.exp(nats / counts), perplexity_over(nats, counts)
        found = dict(zip(judged, perplexities.tolist(), strict=True))
        mean, error = ratio_with_error(perplexities, np.ones(len(judged)))
        return {
            "mean": mean,
            "mean_standard_error": error,
            "pooled": pooled["perplexity"],
            "pooled_standard_error": pooled["perplexity_standard_error"],
            "perplexities": [found.get(index) for index in range(len(sequences))],
            "unjudged": len(sequences) - len(judged),
            "truncated": sum(len(ids) > self.longest for ids in sequences),
        }


def make_samples(
    sequences: list[list[int]], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> list[Sample]:
    """Return sequences of a model with the configuration `config` as samples, without padding."""
    ends, kept = as_list(config.eos_token_id), []
    for ids in sequences:
        length = num_unpadded(ids, tokenizer.eos_token_id, config.pad_token_id)
        has_end = length > 0 and ids[length - 1] in ends
        kept.append(ids[: length + (not has_end)])  # the first end of text is no padding
    return [Sample(ids, tokenizer.decode(ids)) for ids in kept]


def unigram_entropy(tokens: Sequence[int]) -> float:
    """Return the entropy of the token frequencies of a sample, in nats. The entropy of an empty sample is 0."""
    frequencies = [count / len(tokens) for count in Counter(tokens).values()]
    return -math.fsum(frequency * math.log(frequency) for frequency in frequencies) + 0.0  # turns -0.0 into 0.0


def distinct(samples: Sequence[Sequence[int]], n: int) -> float | None:
    """Return the number of distinct n-grams divided by the number of all n-grams, or None if there are no n-grams."""
    ngrams = [tuple(tokens[start : start + n]) for tokens in samples for start in range(len(tokens) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else None
