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
Perplexity of texts under a language model that predicts tokens in any order: exp of -log p(x | order) per token, for
random orders (whose mean is the any-order loss and so the masked-diffusion bound) or left to right."""

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str): texts, each scored on its own.
    model_id (str): name or folder of an AO-GPT, sigma-GPT or masked diffusion encoder, with its tokenizer.
    orders (str): "random" (default) or "left_to_right".
    num_orders (int): random orders to average over (default: 1).
    add_end_of_text (bool): score each text with the end-of-text token behind it (default: True).
    batch_size (int): texts scored at once (default: 16).
    seed (int): of the random orders, which depend on the batch size as well (default: 0).
    device (str): unless given, "cuda" where there is one, else "cpu".
    trust_remote_code (bool): allow the code in the model's folder or repository to run; needed unless the package
        modeling_aogpt was imported before (default: False).

Returns:
    perplexities (list of float): of each text, per token.
    mean_perplexity (float): their mean.
    pooled_perplexity (float): exp of all nats over all tokens.

Examples:
    >>> metric = evaluate.load("eval/metrics/any_order_perplexity")
    >>> metric.compute(predictions=["GREEK SMALL LETTER ALPHA"], model_id="runs/quickstart/model")
"""

_CITATION = "Xue et al., Any-Order GPT as Masked Diffusion Model, ICML 2025, arXiv:2506.19935"

ORDERS = ("random", "left_to_right")


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AnyOrderPerplexity(evaluate.Metric):
    """Of texts, without references."""

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
            raise ValueError("There are no predictions: give at least one text.")
        if orders not in ORDERS:
            raise ValueError(f"orders={orders!r} is not one of {', '.join(map(repr, ORDERS))}.")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModel.from_pretrained(model_id, trust_remote_code=trust_remote_code).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(model_id)
        sequences = tokenizer(list(predictions), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if add_end_of_text:
            sequences = [[*ids, tokenizer.eos_token_id] for ids in sequences]
        longest = model.config.max_position_embeddings
        for index, ids in enumerate(sequences):
            if not 1 <= len(ids) <= longest:
                raise ValueError(
                    f"Text {index} has {len(ids)} tokens, but this model takes 1 to {longest}: leave out or split it."
                )
        generator = torch.Generator().manual_seed(seed)
        nats = []
        for start in range(0, len(sequences), batch_size):
            ids = [torch.tensor(sequence) for sequence in sequences[start : start + batch_size]]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            kept = torch.nn.utils.rnn.pad_sequence([torch.ones_like(sequence) for sequence in ids], batch_first=True)
            scores = model.log_likelihood(
                padded.to(device),
                orders=orders,
                num_orders=num_orders,
                attention_mask=kept.to(device),
                generator=generator,
            )
            nats += (-scores.log_likelihood).tolist()
        lengths = [len(ids) for ids in sequences]
        perplexities = [math.exp(total / length) for total, length in zip(nats, lengths, strict=True)]
        return {
            "perplexities": perplexities,
            "mean_perplexity": math.fsum(perplexities) / len(perplexities),
            "pooled_perplexity": math.exp(math.fsum(nats) / sum(lengths)),
        }
