# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
The negative log-likelihood of a batch under each kind of model, by the measures that the kind has.

`left_to_right` is -log p(x) in the order of the text, `any_order` the mean over random orders (Eq. 7; for an encoder
the same bound by masking, Eq. 1), `ensemble` the same with predictions averaged over orders of the context (Eq. 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedModel

from common.models import Model, load_pretrained, read_any_config
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM

MEASURES = ("left_to_right", "any_order", "ensemble")
RANDOM_MEASURES = ("any_order", "ensemble")
LOGITS_PER_PASS = 4096 * 50304  # of a causal language model: 824 MB in float32

Batch = dict[str, torch.Tensor]  # what DataCollatorForAnyOrderLM gives, on the model's device


@dataclass
class Estimators:
    """
    Settings of the measures that are estimated.

    Attributes:
        ensemble_size: Orders of a context, M.
        num_ranks: Draws, even, that estimate what the ensemble adds; 0: all ranks, which takes M n^2 / 2 rows.
        num_times: Masking times of an encoder's bound, even.
    """

    ensemble_size: int = 8
    num_ranks: int = 8
    num_times: int = 32


@dataclass
class AnyOrderScorer:
    """Scorer of AO-GPT, sigma-GPT and encoder-only masked diffusion models."""

    model: Model
    estimators: Estimators = field(default_factory=Estimators)

    def __post_init__(self) -> None:
        self.is_encoder = isinstance(self.model, MDMEncoderForMaskedLM)
        self.measures = MEASURES[:2] if self.is_encoder else MEASURES
        # Left to right takes an encoder a pass for every token.
        self.default_measures = ("any_order",) if self.is_encoder else MEASURES[:2]

    def nats(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Return -log p of each sequence, (batch,), or the bound on it."""
        options: dict[str, Any] = {"orders": "left_to_right" if measure == "left_to_right" else batch["orders"]}
        if measure == "ensemble":
            options = {
                "orders": "random",  # whose estimate takes the fewest rows
                "ensemble_size": self.estimators.ensemble_size,
                "num_ranks": self.estimators.num_ranks or None,
                "generator": generator,
            }
        elif measure == "any_order" and self.is_encoder:
            options = {"num_times": self.estimators.num_times, "generator": generator}
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        return -self.model.log_likelihood(ids, attention_mask=mask, rows_per_pass=ids.numel(), **options).log_likelihood


@dataclass
class CausalScorer:
    """
    Scorer of any causal language model of transformers.

    Attributes:
        start_id: Id to put before every sequence, so that its first token is predicted too; the last token, from which
            nothing is predicted, makes room for it. None: the first token is given and not scored, as in the tables.
    """

    model: PreTrainedModel
    start_id: int | None = None
    measures: ClassVar[Sequence[str]] = ("left_to_right",)
    default_measures: ClassVar[Sequence[str]] = ("left_to_right",)

    def nats(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Return -log p of each sequence, (batch,). Few sequences share a pass, so that few logits are held at once."""
        labels = batch["labels"]
        input_ids = batch["input_ids"][:, :-1]
        if self.start_id is None:
            labels = labels[:, 1:]
        else:
            input_ids = torch.nn.functional.pad(input_ids, (1, 0), value=self.start_id)
        at_once = max(1, LOGITS_PER_PASS // (self.model.config.get_text_config().vocab_size * input_ids.shape[1]))
        parts = zip(input_ids.split(at_once), labels.split(at_once), strict=True)
        return torch.cat([self._nats(*part) for part in parts])

    @torch.no_grad()
    def _nats(self, input_ids: torch.LongTensor, labels: torch.LongTensor) -> torch.Tensor:
        # Padding stands on the right, where a causal model does not see it.
        logits = self.model(input_ids, use_cache=False).logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.double().view(labels.shape).sum(dim=-1)


Scorer = AnyOrderScorer | CausalScorer


def load_scorer(
    name: str, dtype: torch.dtype, device: torch.device, estimators: Estimators, revision: str | None = None
) -> Scorer:
    """
    Load the scorer of a model in a folder or on the Hub.

    Args:
        name: Folder or name on the Hub.
        dtype: Of the weights.
        device: Of the model.
        estimators: For models of this package.
        revision: Commit of a model on the Hub; unless given, the newest.

    Raises:
        ValueError: If there is none, or it is no language model of a kind that can be scored, see `check_causal`.
    """
    config = read_any_config(name, revision=revision)
    model_class = {AOGPTConfig: AOGPTForAnyOrderLM, MDMEncoderConfig: MDMEncoderForMaskedLM}.get(type(config))
    if model_class is None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{name!r} ({config.model_type}) is none of an AO-GPT, a masked diffusion encoder or a causal language "
            "model."
        )
    model = load_pretrained(model_class or AutoModelForCausalLM, name, revision=revision, dtype=dtype).to(device).eval()
    if model_class is None:
        check_causal(model, name)
    return make_scorer(model, estimators)


def make_scorer(model: PreTrainedModel, estimators: Estimators | None = None) -> Scorer:
    """Return the scorer of a model in memory."""
    if isinstance(model, Model):
        return AnyOrderScorer(model, estimators or Estimators())
    return CausalScorer(model)


@torch.no_grad()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """
    Raise a `ValueError` for a model whose predictions see what comes after. Transformers has causal classes for some
    encoders (BERT and its like), which are causal only where the configuration says so (`is_decoder`).
    """
    ids = torch.tensor([[0, 0], [0, 1]], device=model.device)
    one, other = model(ids, use_cache=False).logits[:, 0]
    tolerance = torch.finfo(one.dtype).eps ** 0.5 * one.abs().max()  # rows of a batch may round differently
    if (one - other).abs().max() > tolerance:
        raise ValueError(
            f"{name!r} ({model.config.model_type}) sees what comes after the token that it predicts: it is no causal "
            "language model, and its perplexity would mean nothing."
        )
