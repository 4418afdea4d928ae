# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts that a model writes while it is trained."""

from collections.abc import Sequence
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
    """The text of a sequence that is filled up with end-of-text; one inside the text, a fault, stays in sight."""
    return tokenizer.decode(ids[: num_kept(ids, tokenizer.eos_token_id)])


def num_kept(ids: Sequence[int], end_of_text: int) -> int:
    """How many ids there are before the end-of-texts at the end."""
    end = len(ids)
    while end and ids[end - 1] == end_of_text:
        end -= 1
    return end
