# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM
from training.evaluation import read_samples, write_samples


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
