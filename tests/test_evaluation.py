# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM
from training.evaluation import write_samples


def test_samples_do_not_depend_on_the_global_seed(
    tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    texts = write_samples(tiny_model, tiny_tokenizer, count=3, length=8, step=20, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == "samples-00000020.txt"
    assert len(set(texts)) == 3
    assert file.read_text().split(f"\n{'-' * 80}\n") == [*texts[:-1], texts[-1] + "\n"]
    torch.manual_seed(2)
    assert write_samples(tiny_model, tiny_tokenizer, count=3, length=8, step=20, folder=tmp_path) == texts
