# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of texts under an any-order model, as a module for `evaluate.load`."""

import math
from collections.abc import Sequence

import datasets
import evaluate
import torch
from transformers import AutoModel, AutoTokenizer

_DESCRIPTION = """\
Perplexity of texts under a language model that predicts tokens in any order. It is exp(-log p(x | order) / number of
tokens), where -log p(x | order) is that of the left-to-right order, or its mean over random orders. The mean over all
orders is the any-order loss, which equals the masked-diffusion bound."""

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str): Texts. They are scored independently.
    model_id (str): Name or folder of an AO-GPT, sigma-GPT or masked diffusion encoder with a tokenizer.
    orders (str): "random" (default) or "left_to_right".
    num_orders (int): Number of random orders over which -log p(x | order) is averaged (default: 1).
    add_end_of_text (bool): Append the end-of-text token to each text (default: True).
    batch_size (int): Number of texts that are scored at once (default: 16).
    seed (int): Seed of the random orders (default: 0). The orders also depend on the batch size.
    device (str): Defaults to "cuda" if available, else "cpu".
    trust_remote_code (bool): Whether code from the model's folder or repository may run (default: False). Must be True
        unless the package modeling_aogpt was imported before.

Returns:
    perplexities (list of float): Perplexity per token of each text.
    mean_perplexity (float): Mean of the perplexities.
    pooled_perplexity (float): exp of the total negative log-likelihood divided by the total number of tokens.

Examples:
    >>> import modeling_aogpt  # instead, you can pass trust_remote_code=True to `compute`
    >>> metric = evaluate.load("eval/metrics/any_order_perplexity")
    >>> metric.compute(predictions=["GREEK SMALL LETTER ALPHA"], model_id="runs/quickstart/model")
"""

_CITATION = """\
Xue et al., Any-Order GPT as Masked Diffusion Model: Decoupling Formulation and Architecture, arXiv:2506.19935"""

ORDERS = ("random", "left_to_right")


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AnyOrderPerplexity(evaluate.Metric):
    """Perplexity of texts under an any-order model."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        model_id: str,
        orders: str = "random",
        num_orders: int = 1,
        add_end_of_text: bool = True,
        batch_size: int = 16,
        seed: int = 0,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> dict[str, float | list[float]]:
        if not len(predictions):
            raise ValueError("`predictions` is empty. Pass at least one text.")
        if orders not in ORDERS:
            raise ValueError(f"`orders` must be one of {', '.join(map(repr, ORDERS))}, but is {orders!r}.")
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, but is {batch_size}.")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModel.from_pretrained(model_id, trust_remote_code=trust_remote_code).to(device).eval()
        if not hasattr(model, "log_likelihood"):
            raise ValueError(
                f"{model_id} is not an any-order model. Use `evaluate`'s metric perplexity for causal models."
            )
        tokenizer = AutoTokenizer.from_pretrained(model_id, trust_remote_code=trust_remote_code)
        sequences = tokenizer(list(predictions), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if add_end_of_text:
            sequences = [[*ids, tokenizer.eos_token_id] for ids in sequences]
        longest = model.config.max_position_embeddings
        for index, ids in enumerate(sequences):
            if not 1 <= len(ids) <= longest:
                raise ValueError(
                    f"`predictions[{index}]` must have 1 to {longest} tokens, but has {len(ids)}. Remove or split it."
                )
        generator = torch.Generator().manual_seed(seed)
        nats = []
        for start in range(0, len(sequences), batch_size):
            ids = [torch.tensor(sequence) for sequence in sequences[start : start + batch_size]]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(sequence) for sequence in ids], batch_first=True)
            output = model.log_likelihood(
                padded.to(device),
                orders=orders,
                num_orders=num_orders,
                attention_mask=mask.to(device),
                generator=generator,
            )
            nats += (-output.log_likelihood).tolist()
        lengths = [len(ids) for ids in sequences]
        perplexities = [math.exp(total / length) for total, length in zip(nats, lengths, strict=True)]
        return {
            "perplexities": perplexities,
            "mean_perplexity": math.fsum(perplexities) / len(perplexities),
            "pooled_perplexity": math.exp(math.fsum(nats) / sum(lengths)),
        }
