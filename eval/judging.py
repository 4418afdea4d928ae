# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Judgements of samples by any causal language model: generative perplexity, and MAUVE against other text."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from common.commands import progress_bar
from common.models import identity_of_weights, load_pretrained, longest_sequence
from eval.protocols import BLOCK_LENGTH
from eval.scorers import CausalScorer, check_causal
from eval.scoring import batches_of
from modeling_aogpt import DataCollatorForAnyOrderLM


@dataclass
class Sample:
    """
    A sample of a model.

    Attributes:
        ids: Of the model's tokenizer.
        text: Their text; end-of-text is the model's token for it.
    """

    ids: list[int]
    text: str


class Judge:
    """
    A causal language model that scores samples: their ids if its tokenizer is the model's, else their text.

    Args:
        name: Name or folder of a causal language model with its tokenizer.
        device: Of the model.
        dtype: Of the weights.

    Raises:
        ValueError: If there is none, or it sees what comes after.
    """

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        try:
            model = load_pretrained(AutoModelForCausalLM, name, dtype=dtype).to(device).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"There is no causal language model {name!r} with a tokenizer, on the Hub or as a folder: {error}"
            ) from error
        check_causal(model, name)
        self.name, self.weights = name, identity_of_weights(name)
        self.scorer = CausalScorer(model)
        self.longest = longest_sequence(model.config) or BLOCK_LENGTH

    def encode(self, samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Return the judge's ids of samples of a model with this tokenizer."""
        if same_ids(tokenizer, self.tokenizer):
            return [sample.ids for sample in samples]
        end_of_text = self.tokenizer.eos_token or "\n"
        texts = [sample.text.replace(tokenizer.eos_token, end_of_text) for sample in samples]
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def perplexity(self, sequences: Sequence[list[int]], batch_size: int) -> dict[str, Any]:
        """
        Return the generative perplexity, of each sample from its second token on. The first is given.

        The result has the `mean` over samples and its standard error, `pooled` (exp of all nats over all tokens, to
        which long samples add more), the `perplexities` of samples, and how many were `unjudged` (None; under two
        tokens) or `truncated` to what the judge takes.
        """
        judged = [number for number, ids in enumerate(sequences) if len(ids) > 1]
        if not judged:
            raise ValueError("No sample has two tokens, so there is nothing to judge.")
        cut = [{"input_ids": sequences[number][: self.longest]} for number in judged]
        batches = progress_bar(batches_of(cut, batch_size), desc="Judging", leave=False)
        nats = np.concatenate([self._nats(rows) for rows in batches])
        counts = np.array([len(row["input_ids"]) - 1 for row in cut])
        perplexities = np.exp(nats / counts)
        of_samples: list[float | None] = [None] * len(sequences)
        for number, perplexity in zip(judged, perplexities.tolist(), strict=True):
            of_samples[number] = perplexity
        error = float(perplexities.std(ddof=1) / len(judged) ** 0.5) if len(judged) > 1 else None
        return {
            "mean": float(perplexities.mean()),
            "mean_standard_error": error,
            "pooled": math.exp(nats.sum() / counts.sum()),
            "perplexities": of_samples,
            "unjudged": len(sequences) - len(judged),
            "truncated": sum(len(ids) > self.longest for ids in sequences),
        }

    def _nats(self, rows: list[dict[str, Any]]) -> np.ndarray:
        batch = DataCollatorForAnyOrderLM(pad_token_id=0)(rows)
        device = self.scorer.model.device
        nats = self.scorer.nats("left_to_right", {part: values.to(device) for part, values in batch.items()}, None)
        return nats.cpu().numpy()

    @torch.no_grad()
    def features(self, sequences: Sequence[list[int]]) -> np.ndarray:
        """Return the last hidden state at the last token of each sample, (samples, hidden_size), for MAUVE."""
        states = []
        for ids in sequences:
            given = torch.tensor([ids[: self.longest]], device=self.scorer.model.device)
            output = self.scorer.model(given, output_hidden_states=True, use_cache=False)
            states.append(output.hidden_states[-1][0, -1].float().cpu().numpy())
        return np.stack(states)

    def mauve(self, sequences: Sequence[list[int]], references: Sequence[str], seed: int) -> float:
        """
        Return MAUVE (Pillutla et al., 2021) of samples against reference texts, cut alike to the length of the longest
        sample, with the judge's features.

        Raises:
            ValueError: If the package is not installed.
        """
        check_mauve()
        import mauve

        # A sample may end with end-of-text, which references do not, and the last token is what features are of.
        end = [self.tokenizer.eos_token_id]
        sequences = [ids[:-1] if ids[-1:] == end else ids for ids in sequences]
        longest = max(map(len, sequences))
        theirs = self.tokenizer(list(references), add_special_tokens=False, verbose=False)["input_ids"]
        found = mauve.compute_mauve(
            p_features=self.features([ids[:longest] for ids in theirs if ids]),
            q_features=self.features([ids for ids in sequences if ids]),
            seed=seed,
            verbose=False,
        )
        return float(found.mauve)


def check_mauve() -> None:
    if importlib.util.find_spec("mauve") is None:
        raise ValueError("MAUVE needs a package: pip install mauve-text, or leave out the reference texts.")


def same_ids(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Return whether two tokenizers agree on all ids but those of masks, which no sample holds."""

    def vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        return {token: id for token, id in tokenizer.get_vocab().items() if token != tokenizer.mask_token}

    return vocabulary(one) == vocabulary(other)
