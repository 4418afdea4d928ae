# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM
from training.samples import decode, write_samples
from training.tokenization import train_tokenizer


def test_texts_are_written_the_same_each_time(
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


def test_ends_of_text_behind_a_text_are_left_out(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    end = tiny_tokenizer.eos_token_id
    assert decode([0, end, 1, end, end], tiny_tokenizer) == tiny_tokenizer.decode([0, end, 1])
    assert decode([end, end], tiny_tokenizer) == ""
    assert decode([0, 1], tiny_tokenizer) == tiny_tokenizer.decode([0, 1])


def test_what_only_spells_end_of_text_is_text() -> None:
    tokenizer = train_tokenizer(["ab abc"] * 9, 258)
    spelled = tokenizer.convert_tokens_to_ids(list("a<|endoftext|>"))
    assert tokenizer.eos_token_id not in spelled
    assert decode([*spelled, tokenizer.eos_token_id], tokenizer) == "a<|endoftext|>"
