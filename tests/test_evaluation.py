# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM
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
    write_samples(tiny_model, tiny_tokenizer, count=3, length=8, path=file)
    texts = read_samples(file)
    assert len(set(texts)) == 3
    assert file.read_text().split(f"\n{'-' * 80}\n") == [*texts[:-1], texts[-1] + "\n"]
    torch.manual_seed(2)
    write_samples(tiny_model, tiny_tokenizer, count=3, length=8, path=file)
    assert read_samples(file) == texts


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
