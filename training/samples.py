# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts that a model writes while it is trained."""

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from training.files import write_text
from training.initialization import Model

SEED = 20250624  # every evaluation draws the same numbers, so texts show the progress of the model alone


def write_samples(
    model: Model, tokenizer: PreTrainedTokenizerBase, count: int, length: int, step: int, folder: Path
) -> list[str]:
    """Unconditional texts of `length` tokens, without the ends of text behind them, in `folder/samples-STEP.txt`."""
    generator = torch.Generator(model.device).manual_seed(SEED)
    sequences = model.generate(num_return_sequences=count, max_length=length, generator=generator)
    texts = [decode(ids, tokenizer) for ids in sequences.tolist()]
    separator = f"\n{'-' * 80}\n"
    write_text(folder / f"samples-{step:08d}.txt", separator.join(texts) + "\n")
    return texts


def decode(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    end = len(ids)
    while end and ids[end - 1] == tokenizer.eos_token_id:
        end -= 1
    return tokenizer.decode(ids[:end])
