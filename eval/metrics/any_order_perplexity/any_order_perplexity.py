# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Perplexity of texts under an any-order model, as a module for `evaluate.load`."""

import math

import datasets
import evaluate
import torch
from transformers import AutoModel, AutoTokenizer

_DESCRIPTION = """\
Perplexity of texts under a model that predicts tokens in any order: exp(-log p(x | order) / number of tokens). Each
text is scored independently, with one end-of-text token at its end."""

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str): Texts.
    model_id (str): Name or folder of an AO-GPT, sigma-GPT or masked diffusion encoder with a tokenizer.
    batch_size (int): Number of texts that are scored at once (default: 16).
    seed (int): Seed of random orders (default: 0). The orders also depend on the batch size.
    trust_remote_code (bool): Whether code from the model's folder or repository may run (default: False). Must be True
        unless the package modeling_aogpt was imported before.
    **options: Arguments of `model.log_likelihood`. By default, the order is random. Other examples are
        `orders="left_to_right"`, and `num_orders=8`, which averages -log p(x | order) over 8 random orders.

Returns:
    perplexities (list of float): Perplexity of each text.
    mean_perplexity (float): Mean of the perplexities.
    pooled_perplexity (float): exp of the total negative log-likelihood divided by the total number of tokens.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AnyOrderPerplexity(evaluate.Metric):
    """Perplexity of texts under an any-order model."""

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("string")})
        return evaluate.MetricInfo(_DESCRIPTION, citation="", features=features, inputs_description=_KWARGS_DESCRIPTION)

    def _compute(
        self,
        predictions: list[str],
        model_id: str,
        batch_size: int = 16,
        seed: int = 0,
        trust_remote_code: bool = False,
        **options: object,
    ) -> dict[str, float | list[float]]:
        if not len(predictions):
            raise ValueError("`predictions` is empty. Pass at least one text.")
        model = AutoModel.from_pretrained(model_id, trust_remote_code=trust_remote_code).eval()
        if not hasattr(model, "log_likelihood"):
            raise ValueError(f"{model_id} is not an any-order model. Use the metric `perplexity` for causal models.")
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        tokenizer = AutoTokenizer.from_pretrained(model_id, trust_remote_code=trust_remote_code)
        if tokenizer.mask_token and any(tokenizer.mask_token in text for text in predictions):
            raise ValueError(f"A text contains the mask {tokenizer.mask_token}, which has no likelihood. Replace it.")
        encoded = tokenizer(list(predictions), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if (unknown := tokenizer.unk_token_id) != tokenizer.eos_token_id and any(unknown in ids for ids in encoded):
            text = f"The tokenizer lacks characters ({tokenizer.unk_token}) of some texts. Their perplexity is too low."
            evaluate.logging.get_logger(__name__).warning(text)
        encoded = [[*ids, tokenizer.eos_token_id] for ids in encoded]
        begin = [model.config.start_token_id]  # scored only after another one
        sequences = [torch.tensor(begin * (ids[:1] == begin) + ids) for ids in encoded]
        options = {"orders": "random", "generator": torch.Generator().manual_seed(seed)} | options
        nats: list[float] = []
        for start in range(0, len(sequences), batch_size):
            batch = sequences[start : start + batch_size]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in batch], batch_first=True)
            output = model.log_likelihood(ids.to(model.device), attention_mask=mask.to(model.device), **options)
            nats += (-output.log_likelihood).tolist()
        perplexities = [math.exp(total / len(ids)) for total, ids in zip(nats, encoded, strict=True)]
        return {
            "perplexities": perplexities,
            "mean_perplexity": math.fsum(perplexities) / len(perplexities),
            "pooled_perplexity": math.exp(math.fsum(nats) / sum(map(len, encoded))),
        }
