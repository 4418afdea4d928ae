# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What a judge, any causal language model, says of samples: generative perplexity, and MAUVE against other text."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from eval.protocols import BLOCK_LENGTH
from eval.scorers import CausalScorer, check_causal, identity_of_weights, longest_sequence
from eval.scoring import batches_of, progress_interval
from modeling_aogpt import DataCollatorForAnyOrderLM
from training.initialization import load_whole


@dataclass
class Sample:
    """
    Attributes:
        ids: of the model's tokenizer.
        text: what they spell; end-of-text is the model's token for it.
    """

    ids: list[int]
    text: str


class Judge:
    """
    Scores samples. Where its tokenizer is that of the model it scores their ids, else their text, tokenised anew.

    Args:
        name: name or folder of a causal language model with its tokenizer.

    Raises:
        ValueError: if there is none, or it sees what comes after.
    """

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        try:
            model = load_whole(AutoModelForCausalLM, name, dtype=dtype).to(device).eval()
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
        """The judge's ids of samples of a model with this tokenizer."""
        if same_ids(tokenizer, self.tokenizer):
            return [sample.ids for sample in samples]
        end_of_text = self.tokenizer.eos_token or "\n"
        texts = [sample.text.replace(tokenizer.eos_token, end_of_text) for sample in samples]
        return self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    def perplexity(self, sequences: Sequence[list[int]], batch_size: int) -> dict[str, Any]:
        """
        Generative perplexity: of each sample from its second token on, the first is given.

        Returns the `mean` over samples and its standard error, `pooled` (exp of all nats over all tokens, to which
        long samples add more), the `perplexities` of samples, and how many were `unjudged` (None; under two tokens) or
        `truncated` to what the judge takes.
        """
        judged = [number for number, ids in enumerate(sequences) if len(ids) > 1]
        if not judged:
            raise ValueError("No sample has two tokens, so there is nothing to judge.")
        cut = [{"input_ids": sequences[number][: self.longest]} for number in judged]
        batches = tqdm(batches_of(cut, batch_size), desc="Judging", mininterval=progress_interval(), leave=False)
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
        """The last hidden state at the last token of each sample, (samples, hidden_size), as MAUVE takes them."""
        states = []
        for ids in sequences:
            given = torch.tensor([ids[: self.longest]], device=self.scorer.model.device)
            output = self.scorer.model(given, output_hidden_states=True, use_cache=False)
            states.append(output.hidden_states[-1][0, -1].float().cpu().numpy())
        return np.stack(states)

    def mauve(self, sequences: Sequence[list[int]], references: Sequence[str], seed: int) -> float:
        """
        MAUVE (Pillutla et al., 2021) of samples against reference texts, cut alike to the length of the longest sample,
        with the judge's features.

        Raises:
            ValueError: if the package is not installed.
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
    """Whether two tokenizers agree on all ids but those of masks, which no sample holds."""

    def vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        return {token: id for token, id in tokenizer.get_vocab().items() if token != tokenizer.mask_token}

    return vocabulary(one) == vocabulary(other)
