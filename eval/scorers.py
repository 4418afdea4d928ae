# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Negative log-likelihoods of a batch under any-order, masked diffusion and causal models.

A `measure` is one of three kinds of log-likelihood:

* `left_to_right`: log p(x) in the order of the text.
* `any_order`: the mean of log p(x | order) over random orders (Eq. 7 of arXiv 2506.19935). For an encoder, it is
  estimated with random masks (Eq. 1).
* `ensemble`: log p(x | order) in a random order, where each prediction is averaged over orders of its context (Eq. 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModel, AutoModelForCausalLM, PreTrainedModel

from common.packing import keep_first_tokens
from modeling_aogpt import AOGPTConfig, MDMEncoderForMaskedLM
from modeling_aogpt.loading import Model, load_pretrained, read_any_config

MEASURES = ("left_to_right", "any_order", "ensemble")
RANDOM_MEASURES = ("any_order", "ensemble")
LOGITS_PER_PASS = 4096 * 50304  # limit for causal language models; 824 MB in float32

Batch = dict[str, torch.Tensor]  # output of DataCollatorForAnyOrderLM, on the model's device


@dataclass
class AnyOrderScorer:
    """Scorer of AO-GPT, sigma-GPT and encoder-only masked diffusion models. It calls `log_likelihood`.

    The numbers are arguments of that method. With `num_ranks=0`, ensembles are computed at all ranks of an order.
    """

    model: Model
    ensemble_size: int = 8
    num_ranks: int = 8
    num_times: int = 32  # only for encoders
    num_unscored: ClassVar[int] = 0  # number of tokens at the start of a sequence that are not scored

    def __post_init__(self) -> None:
        self.is_encoder = isinstance(self.model, MDMEncoderForMaskedLM)
        self.measures = MEASURES[:2] if self.is_encoder else MEASURES
        # For an encoder, left_to_right is not a default, because it needs a forward pass per token.
        self.default_measures = ("any_order",) if self.is_encoder else MEASURES[:2]

    def negative_log_likelihood(self, measure: str, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """Return -log p (batch,) of each sequence in nats, or an upper bound on -log p, for the kind `measure`."""
        batch = keep_first_tokens(batch, self.model.config.start_token_id)
        options: dict[str, Any] = {"orders": "left_to_right" if measure == "left_to_right" else batch["orders"]}
        if measure == "ensemble":  # not batch["orders"]: log_likelihood needs fewer rows if it draws orders
            options = {"orders": "random", "ensemble_size": self.ensemble_size, "num_ranks": self.num_ranks or None}
            options["generator"] = generator
        elif measure == "any_order" and self.is_encoder:
            options = {"num_times": self.num_times, "generator": generator}
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        return -self.model.log_likelihood(ids, attention_mask=mask, rows_per_pass=ids.numel(), **options).log_likelihood


@dataclass
class CausalScorer:
    """Scorer of any causal language model of Transformers.

    Attributes:
        start_id: Id to put before each sequence, so that the first token is also scored. None means that the first
            token is not scored, as in the published tables.
    """

    model: PreTrainedModel
    start_id: int | None = None
    measures: ClassVar[Sequence[str]] = ("left_to_right",)
    default_measures: ClassVar[Sequence[str]] = ("left_to_right",)

    @property
    def num_unscored(self) -> int:
        """Number of tokens at the start of a sequence that are not scored."""
        return int(self.start_id is None)

    @torch.no_grad()
    def negative_log_likelihood(self, measure: str, batch: Batch, generator: torch.Generator | None) -> torch.Tensor:
        """Return -log p of each sequence in nats, (batch,). Each pass computes at most `LOGITS_PER_PASS` logits."""
        labels = batch["labels"]
        input_ids = batch["input_ids"][:, :-1]
        if self.start_id is None:
            labels = labels[:, 1:]
        else:
            input_ids = torch.nn.functional.pad(input_ids, (1, 0), value=self.start_id)
        vocab_size = self.model.config.get_text_config().vocab_size
        rows_per_pass = max(1, LOGITS_PER_PASS // (vocab_size * input_ids.shape[1]))
        nats = []
        for ids, targets in zip(input_ids.split(rows_per_pass), labels.split(rows_per_pass), strict=True):
            logits = self.model(ids, use_cache=False).logits  # a causal model does not attend to padding on the right
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            nats.append(losses.double().view(targets.shape).sum(dim=-1))
        return torch.cat(nats)


ModelScorer = AnyOrderScorer | CausalScorer


def load_scorer(
    name: str, dtype: torch.dtype, device: torch.device, revision: str | None = None, **settings: int
) -> ModelScorer:
    """Return a scorer for a model in a folder or on the Hub at commit `revision`. `settings` go to `AnyOrderScorer`."""
    config = read_any_config(name, revision=revision)
    is_any_order = isinstance(config, AOGPTConfig)  # also the configuration of an encoder
    if not is_any_order and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{name!r} cannot be evaluated, because it is a model of type {config.model_type}. Use an AO-GPT, a masked "
            "diffusion encoder or a causal language model."
        )
    model_class = AutoModel if is_any_order else AutoModelForCausalLM
    model = load_pretrained(model_class, name, revision=revision, dtype=dtype).to(device).eval()
    if is_any_order:
        return AnyOrderScorer(model, **settings)
    check_causal(model, name)
    return CausalScorer(model)


@torch.no_grad()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raise a `ValueError` if predictions of a model depend on later tokens.

    This happens with encoders such as BERT: Transformers has causal language model classes for them, but they are
    causal only if the configuration has `is_decoder=True`.
    """
    ids = torch.tensor([[0, 0], [0, 1]], device=model.device)
    one, other = model(ids, use_cache=False).logits[:, 0]
    tolerance = torch.finfo(one.dtype).eps ** 0.5 * one.abs().max()  # sequences of a batch may be rounded differently
    if (one - other).abs().max() > tolerance:
        raise ValueError(
            f"{name!r} ({model.config.model_type}) has no perplexity, because it is not causal: its predictions depend "
            "on later tokens. Use a causal language model."
        )
