# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
What scoring needs to know of a kind of model: which measures it has, and the negative log-likelihood of a batch.

`left_to_right` is -log p(x) in the order of the text, `any_order` the mean over random orders (Eq. 7; for an encoder
the same bound by masking, Eq. 1), `ensemble` the same with predictions averaged over orders of the context (Eq. 4).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file, extract_commit_hash

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from training.initialization import load_whole, read_any_config

MEASURES = ("left_to_right", "any_order", "ensemble")
RANDOM_MEASURES = ("any_order", "ensemble")
LOGITS_PER_PASS = 4096 * 50304  # of a causal language model: 824 MB in float32

Batch = dict[str, torch.Tensor]  # what DataCollatorForAnyOrderLM gives, on the model's device


@dataclass
class Estimators:
    """What the measures that are estimated take.

    Attributes:
        ensemble_size: orders of a context, M.
        num_ranks: draws, even, that estimate what the ensemble adds; 0: all ranks, which takes M n^2 / 2 rows.
        num_times: masking times of an encoder's bound, even.
    """

    ensemble_size: int = 8
    num_ranks: int = 8
    num_times: int = 32


@dataclass
class DecoderScorer:
    """AO-GPT and sigma-GPT."""

    model: AOGPTForAnyOrderLM
    estimators: Estimators = field(default_factory=Estimators)
    measures: ClassVar[Sequence[str]] = MEASURES
    default_measures: ClassVar[Sequence[str]] = ("left_to_right", "any_order")

    def nats(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """-log p of each sequence, (batch,)."""
        options: dict[str, Any] = {"orders": "left_to_right" if measure == "left_to_right" else batch["orders"]}
        if measure == "ensemble":
            options = {
                "orders": "random",  # whose estimate takes the fewest rows
                "num_context_orders": self.estimators.ensemble_size,
                "num_ranks": self.estimators.num_ranks or None,
                "generator": generator,
            }
        return negative_log_likelihood(self.model, batch, options)


@dataclass
class EncoderScorer:
    """Encoder-only masked diffusion models."""

    model: MDMEncoderForMaskedLM
    estimators: Estimators = field(default_factory=Estimators)
    measures: ClassVar[Sequence[str]] = ("left_to_right", "any_order")
    default_measures: ClassVar[Sequence[str]] = ("any_order",)  # left to right takes a pass for every token

    def nats(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """-log p of each sequence, (batch,), or the bound on it."""
        options: dict[str, Any] = {"orders": "left_to_right"}
        if measure == "any_order":
            options = {"num_times": self.estimators.num_times, "generator": generator}
        return negative_log_likelihood(self.model, batch, options)


def negative_log_likelihood(
    model: AOGPTForAnyOrderLM | MDMEncoderForMaskedLM, batch: Batch, options: dict[str, Any]
) -> torch.Tensor:
    ids = batch["input_ids"]
    scores = model.log_likelihood(ids, attention_mask=batch.get("attention_mask"), rows_per_pass=ids.numel(), **options)
    return -scores.log_likelihood


@dataclass
class CausalScorer:
    """
    Any causal language model of transformers.

    Attributes:
        start_id: id to put before every sequence, so that its first token is predicted too; the last token, from which
            nothing is predicted, makes room for it. None: the first token is given and not scored, as in the tables.
    """

    model: PreTrainedModel
    start_id: int | None = None
    measures: ClassVar[Sequence[str]] = ("left_to_right",)
    default_measures: ClassVar[Sequence[str]] = ("left_to_right",)

    def nats(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """-log p of each sequence, (batch,), of some sequences at a time so that few logits are held at once."""
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


Scorer = DecoderScorer | EncoderScorer | CausalScorer


def hub_revision(name: str) -> str | None:
    """The commit that the name of a model on the Hub means now; None for a folder, and for what is not there."""
    try:
        return extract_commit_hash(cached_file(name, "config.json"), None)
    except OSError:
        return None


def identity_of_weights(name: str) -> str | None:
    """
    What tells the weights that a name means now from others under it: a commit of the Hub, a digest of a folder.

    The digest is of the tensors, so that it stays when they are saved in other shards.

    Raises:
        ValueError: if the files of a folder are damaged.
    """
    if not Path(name).is_dir():
        return hub_revision(name)
    try:
        digests = sorted(digest for file in Path(name).glob("*.safetensors") for digest in digests_of_tensors(file))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The weights of {name} are missing or damaged: {error}") from error
    return hashlib.sha256("".join(digest for _, digest in digests).encode()).hexdigest()[:12]


def digests_of_tensors(file: Path) -> Iterator[tuple[str, str]]:
    """Of each tensor of a file of weights its name, and a digest of name, type, shape and numbers."""
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():
            tensor = tensors.get_tensor(name)
            digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy())
            yield name, digest.hexdigest()


def load_scorer(
    name: str, dtype: torch.dtype, device: torch.device, estimators: Estimators, revision: str | None = None
) -> Scorer:
    """The model in a folder or on the Hub, ready to score.

    Args:
        revision: commit of a model on the Hub; unless given, the newest.

    Raises:
        ValueError: if there is none, or it is no language model of a kind that can be scored, see `check_causal`.
    """
    config = read_any_config(name, revision=revision)
    kinds = {AOGPTConfig: (AOGPTForAnyOrderLM, DecoderScorer), MDMEncoderConfig: (MDMEncoderForMaskedLM, EncoderScorer)}
    model_class, scorer_class = kinds.get(type(config), (AutoModelForCausalLM, CausalScorer))
    if scorer_class is CausalScorer and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{name!r} ({config.model_type}) is none of an AO-GPT, a masked diffusion encoder or a causal language "
            "model."
        )
    model = load_whole(model_class, name, revision=revision, dtype=dtype).to(device).eval()
    if scorer_class is not CausalScorer:
        return scorer_class(model, estimators)
    check_causal(model, name)
    return CausalScorer(model)


@torch.no_grad()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """
    Raises a `ValueError` for a model whose predictions see what comes after. Transformers has causal classes for some
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


def longest_sequence(config: PreTrainedConfig) -> int | None:
    """Tokens that a language model takes; None where its configuration does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def make_scorer(model: PreTrainedModel) -> Scorer:
    """A scorer for a model in memory."""
    if isinstance(model, MDMEncoderForMaskedLM):
        return EncoderScorer(model)
    return DecoderScorer(model) if isinstance(model, AOGPTForAnyOrderLM) else CausalScorer(model)
