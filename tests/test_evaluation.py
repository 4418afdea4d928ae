# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM
from tests.references import random_encoder
from training.arguments import TrainingArguments
from training.draws import MaskDraws
from training.evaluation import evaluate, read_samples, write_samples


def test_samples_do_not_depend_on_the_global_seed(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    file = tmp_path / "samples.txt"
    assert read_samples(file) == []
    write_samples(tiny_model, tiny_tokenizer, count=3, length=8, path=file, training=TrainingArguments())
    texts = read_samples(file)
    assert len(set(texts)) == 3
    assert file.read_text().split(f"\n{'-' * 80}\n") == [*texts[:-1], texts[-1] + "\n"]
    torch.manual_seed(2)
    write_samples(tiny_model, tiny_tokenizer, count=3, length=8, path=file, training=TrainingArguments())
    assert read_samples(file) == texts


@pytest.fixture
def draw_sample_orders(
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., torch.LongTensor]:
    """Return a function that writes samples of 8 tokens, and returns the orders in which they were generated."""

    def draw(count: int, **settings: object) -> torch.LongTensor:
        outputs, generate = [], tiny_model.generate

        def record(**kwargs: object) -> torch.LongTensor:
            outputs.append(generate(return_dict_in_generate=True, **kwargs))
            return outputs[-1].sequences

        monkeypatch.setattr(tiny_model, "generate", record)
        training = TrainingArguments(**settings, left_to_right_fraction=0.0)
        write_samples(tiny_model, tiny_tokenizer, count, 8, tmp_path / "samples.txt", training)
        return outputs[0].orders

    return draw


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"orders": "left_to_right"}, {0: [0], 7: [7]}),
        ({"orders": "left_to_right", "stride": 4}, {0: [0], 1: [4], 7: [7]}),
        ({"block_length": 4}, {0: [0, 1, 2, 3], 7: [4, 5, 6, 7]}),
        ({"stride": 2}, {0: [0, 2, 4, 6], 7: [1, 3, 5, 7]}),
        ({"orders": "context_first"}, {0: list(range(8)), 7: list(range(8))}),
        ({"orders": "gaps_last"}, {0: [0], 7: [7]}),
    ],
)
def test_samples_are_generated_in_orders_of_the_training(
    settings: dict, expected: dict[int, list[int]], draw_sample_orders: Callable[..., torch.LongTensor]
) -> None:
    """`expected` contains, for some ranks, the positions that have this rank in any of the samples."""
    orders = draw_sample_orders(64, **settings)
    assert {rank: sorted(set(orders[:, rank].tolist())) for rank in expected} == expected


def test_samples_of_a_shared_order_have_the_order_of_the_training(
    draw_sample_orders: Callable[..., torch.LongTensor],
) -> None:
    collator = DataCollatorForAnyOrderLM(orders="shared", left_to_right_fraction=0.0, seed=3)
    expected = collator([{"input_ids": [1] * 8}] * 2)["orders"]
    assert torch.equal(draw_sample_orders(2, orders="shared", seed=3), expected)


def test_bits_per_byte_include_marked_context(tiny_model: AOGPTForAnyOrderLM) -> None:
    columns = {"input_ids": [[1, 2, 3, 4, 5, 6]] * 2, "num_bytes": [9] * 2}
    marked = Dataset.from_dict(columns | {"labels": [[-100, -100, -100, 4, 5, 6]] * 2})
    scores = [
        evaluate(tiny_model, rows, TrainingArguments(), Accelerator(cpu=True))
        for rows in (marked, Dataset.from_dict(columns))
    ]
    assert [one.pop("seconds") >= 0 for one in scores] == [True, True]
    assert scores[0] == scores[1]


def test_bits_per_byte_of_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a head of zeros, each of the 11 ids has the same probability. Masked positions are random."""
    model = random_encoder()
    torch.nn.init.zeros_(model.lm_head.weight)
    rows = Dataset.from_dict({"input_ids": [[row] * 12 for row in range(10)], "num_bytes": [20] * 10})
    batches, draw = [], MaskDraws.__call__
    monkeypatch.setattr(
        MaskDraws, "__call__", lambda self, features: batches.append(draw(self, features)) or batches[-1]
    )
    scores = evaluate(model, rows, TrainingArguments(eval_batch_size=4), Accelerator(cpu=True))
    assert scores["any_order"] == pytest.approx(math.log2(11) * 12 / 20)
    is_masked = torch.cat([batch["is_masked"] for batch in batches])
    assert not torch.equal(is_masked, torch.arange(12) >= 12 - is_masked.sum(dim=1, keepdim=True))
