# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules of eval/metrics, loaded by `evaluate` from their folders."""

import math
from pathlib import Path

import evaluate
import pytest
import torch
import yaml
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from modeling_aogpt import AOGPTForAnyOrderLM

METRICS = Path(__file__).parent.parent / "eval" / "metrics"


@pytest.fixture
def entropy(tmp_path: Path) -> evaluate.Metric:
    return evaluate.load(str(METRICS / "sample_entropy"), cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def perplexity(tmp_path: Path) -> evaluate.Metric:
    return evaluate.load(str(METRICS / "any_order_perplexity"), cache_dir=str(tmp_path / "cache"))


def test_entropy_of_ids(entropy: evaluate.Metric) -> None:
    found = entropy.compute(predictions=[[1, 2, 1, 2], [3, 3, 3, 3], [1, 1, 1, 2]])
    quarter = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert found["entropies"] == pytest.approx([math.log(2), 0, quarter])
    assert found["mean_entropy"] == pytest.approx((math.log(2) + quarter) / 3)
    assert found["distinct_1"] == 3 / 12
    assert found["distinct_2"] == 4 / 9  # 12, 21, 33, 11
    assert found["distinct_3"] == 5 / 6  # 121, 212, 333, 111, 112


def test_entropy_of_texts(entropy: evaluate.Metric) -> None:
    found = entropy.compute(predictions=["a b", "a"], max_n=2)
    assert found == {
        "mean_entropy": pytest.approx(math.log(2) / 2),
        "entropies": [pytest.approx(math.log(2)), 0],
        "distinct_1": 2 / 3,
        "distinct_2": 1,
    }
    assert entropy.compute(predictions=["a"])["distinct_2"] is None


def test_perplexity_of_texts(perplexity: evaluate.Metric, folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    texts = {"abc": [0, 1, 2, 13], "fghijkl": [5, 6, 7, 8, 9, 10, 11, 13], "": [13]}
    nats = [-tiny_model.log_likelihood(torch.tensor([ids])).log_likelihood.item() for ids in texts.values()]
    found = perplexity.compute(predictions=list(texts), model_id=folder, orders="left_to_right", batch_size=2)
    expected = [math.exp(total / len(ids)) for total, ids in zip(nats, texts.values(), strict=True)]
    assert found["perplexities"] == pytest.approx(expected, rel=1e-5)
    assert found["mean_perplexity"] == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert found["pooled_perplexity"] == pytest.approx(math.exp(sum(nats) / 13), rel=1e-5)


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


def test_num_orders_needs_random_orders(perplexity: evaluate.Metric, folder: str) -> None:
    with pytest.raises(
        ValueError, match=r"`num_orders` \(2\) averages over random orders, but `orders` is 'left_to_right'"
    ):
        perplexity.compute(predictions=["ab"], model_id=folder, orders="left_to_right", num_orders=2)


def test_perplexity_in_random_orders(perplexity: evaluate.Metric, folder: str, tiny_model: AOGPTForAnyOrderLM) -> None:
    ids = torch.tensor([[0, 1]])
    orders = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
    nats = [-tiny_model.log_likelihood(ids, orders=order).log_likelihood.item() for order in orders]
    found = perplexity.compute(predictions=["ab"], model_id=folder, num_orders=400, add_end_of_text=False)
    per_sequence = 2 * math.log(found["pooled_perplexity"])
    error = abs(nats[0] - nats[1]) / 2 / 400**0.5
    assert abs(per_sequence - sum(nats) / 2) < 3 * error
    one, same, other = (
        perplexity.compute(predictions=["abcdefgh"], model_id=folder, seed=seed)["mean_perplexity"]
        for seed in (0, 0, 1)
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("texts", "changes", "message"),
    [
        (["a", "a" * 12], {}, r"`predictions\[1\]` must have 1 to 12 tokens, but has 13"),
        ([], {}, "`predictions` is empty"),
        (["a"], {"batch_size": 0}, "`batch_size` must be at least 1, but is 0"),
        (["a", ""], {"add_end_of_text": False}, r"`predictions\[1\]` must have 1 to 12 tokens, but has 0"),
        (
            ["a"],
            {"orders": "right_to_left"},
            "`orders` must be one of 'random', 'left_to_right', but is 'right_to_left'",
        ),
    ],
)
def test_bad_input(perplexity: evaluate.Metric, folder: str, texts: list[str], changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity.compute(predictions=texts, model_id=folder, **changes)


def test_other_models_are_an_error(perplexity: evaluate.Metric, judge: str) -> None:
    with pytest.raises(ValueError, match="is not an any-order model"):
        perplexity.compute(predictions=["a"], model_id=judge)


@pytest.mark.parametrize("name", ["sample_entropy", "any_order_perplexity"])
def test_cards(name: str) -> None:
    text = (METRICS / name / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---")[1])
    assert {"title", "tags", "sdk", "description", "license"} <= header.keys()
    assert {"evaluate", "metric"} <= set(header["tags"])
    assert f'evaluate.load("eval/metrics/{name}")' in text
