# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Metric of eval/metrics, loaded by `evaluate` from its folder."""

import math
from pathlib import Path

import evaluate
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_aogpt import AOGPTForAnyOrderLM

METRICS = Path(__file__).parent.parent / "eval" / "metrics"


@pytest.fixture
def perplexity(tmp_path: Path) -> evaluate.Metric:
    return evaluate.load(str(METRICS / "any_order_perplexity"), cache_dir=str(tmp_path / "cache"))


def test_perplexity_of_texts(perplexity: evaluate.Metric, folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    texts = {"abc": [0, 1, 2, 13], "fghijkl": [5, 6, 7, 8, 9, 10, 11, 13], "": [13]}
    nats = [-tiny_model.log_likelihood(torch.tensor([ids])).log_likelihood.item() for ids in texts.values()]
    found = perplexity.compute(predictions=list(texts), model_id=folder, orders="left_to_right", batch_size=2)
    expected = [math.exp(total / len(ids)) for total, ids in zip(nats, texts.values(), strict=True)]
    assert found["perplexities"] == pytest.approx(expected, rel=1e-5)
    assert found["mean_perplexity"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert found["pooled_perplexity"] == pytest.approx(math.exp(sum(nats) / 13), rel=1e-5)
    mask = AutoTokenizer.from_pretrained(folder).mask_token
    with pytest.raises(ValueError, match="mask"):  # some tokenizers would drop the space before it
        perplexity.compute(predictions=[f"ab {mask}"], model_id=folder)


def test_a_first_token_that_is_the_start_token_is_scored(perplexity: evaluate.Metric, folder: str) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(folder)
    model.config.start_token_id = 0
    model.save_pretrained(folder)
    model = AOGPTForAnyOrderLM.from_pretrained(folder)  # without its learned start
    expected = model.log_likelihood(torch.tensor([[0, 0, 1, 13]])).log_likelihood.item()
    found = perplexity.compute(predictions=["ab"], model_id=folder, orders="left_to_right")
    assert found["perplexities"] == pytest.approx([math.exp(-expected / 3)], rel=1e-5)


def test_the_tokenizer_may_also_use_remote_code(
    perplexity: evaluate.Metric, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, Transformers asks on the terminal whether to run the code of the model, and waits 15 seconds."""
    calls, load = [], AutoTokenizer.from_pretrained

    def record(name: str, **options: object) -> PreTrainedTokenizerBase:
        calls.append(options)
        return load(name)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", record)
    perplexity.compute(predictions=["ab"], model_id=folder, trust_remote_code=True)
    assert calls == [{"trust_remote_code": True}]


def test_perplexity_in_random_orders(perplexity: evaluate.Metric, folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([[0, 13]])
    orders = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
    nats = [-tiny_model.log_likelihood(ids, orders=order).log_likelihood.item() for order in orders]
    found = perplexity.compute(predictions=["a"], model_id=folder, num_orders=400)
    per_sequence = 2 * math.log(found["pooled_perplexity"])
    error = abs(nats[0] - nats[1]) / 2 / 400**0.5
    assert abs(per_sequence - sum(nats) / 2) < 3 * error
    one, same, other = (
        perplexity.compute(predictions=["abcdefgh"], model_id=folder, seed=seed)["mean_perplexity"]
        for seed in (0, 0, 1)
    )
    assert one == same != other


def test_bad_input(perplexity: evaluate.Metric, folder: str, judge: str) -> None:
    with pytest.raises(ValueError, match="`predictions` is empty"):
        perplexity.compute(predictions=[], model_id=folder)
    with pytest.raises(ValueError, match="13 tokens"):
        perplexity.compute(predictions=["a", "a" * 12], model_id=folder)
    with pytest.raises(ValueError, match="is not an any-order model"):
        perplexity.compute(predictions=["a"], model_id=judge)


def test_a_warning_of_characters_that_the_tokenizer_lacks(
    perplexity: evaluate.Metric, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    perplexity.compute(predictions=["abc"], model_id=folder)
    assert "lacks characters" not in caplog.text
    perplexity.compute(predictions=["abc", "ayc"], model_id=folder)
    assert "lacks characters (<unk>)" in caplog.text
