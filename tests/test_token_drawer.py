# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Logits processors and the chunks in which tokens are drawn."""

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from modeling_aogpt import sampling, token_drawer
from tests.references import random_encoder, random_model

MASK = 11


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Distinct(LogitsProcessor):
    """Forbids what stands in the sequence, and remembers what it saw."""

    def __init__(self) -> None:
        self.seen = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids.clone())
        return scores.scatter(1, input_ids, float("-inf"))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order": "confidence"},
        {"strategy": "speculative", "draft_length": 5},
        {"strategy": "speculative", "draft": "ngram"},
    ],
)
def test_processors_see_what_is_revealed_before(arguments: dict) -> None:
    """So every token is another one: of 11 ids, 10 positions; drafts see each other when they are verified."""
    samples = random_model(initializer_range=0.2).generate(
        max_length=10,
        num_return_sequences=20,
        logits_processor=LogitsProcessorList([Distinct()]),
        generator=seeded(),
        **arguments,
    )
    assert all(len(set(row)) == 10 for row in samples.tolist())


def test_encoders_too() -> None:
    samples = random_encoder(initializer_range=0.2).generate(
        max_length=10, logits_processor=LogitsProcessorList([Distinct()]), generator=seeded()
    )
    assert len(set(samples[0].tolist())) == 10


def test_hidden_positions_and_padding_are_masks_to_processors() -> None:
    processor = Distinct()
    inputs = torch.tensor([[1, MASK, 2, MASK, 9]])
    filled = random_model().generate(
        inputs,
        attention_mask=torch.tensor([[1, 1, 1, 1, 0]]),
        order="left_to_right",
        logits_processor=LogitsProcessorList([processor]),
    )
    seen = [[1, MASK, 2, MASK, MASK]], [[1, filled[0, 1].item(), 2, MASK, MASK]]
    assert [ids.tolist() for ids in processor.seen] == list(seen)


@pytest.mark.parametrize("strategy", ["parallel", "speculative"])
@pytest.mark.parametrize("padding", [-100, 3, 999])
def test_processors_do_not_see_what_stands_at_padding(padding: int, strategy: str) -> None:
    def generate(ids: torch.LongTensor, mask: torch.Tensor | None = None) -> torch.LongTensor:
        processors = [RepetitionPenaltyLogitsProcessor(3.0)]
        return random_model(initializer_range=0.2).generate(
            ids,
            attention_mask=mask,
            logits_processor=processors,
            strategy=strategy,
            order="left_to_right",
            generator=seeded(),
        )

    ids = torch.tensor([[5, MASK, MASK, MASK, MASK, MASK]])
    padded = torch.nn.functional.pad(ids, (2, 0), value=padding)
    assert torch.equal(generate(padded, padded != padding)[:, 2:], generate(ids))


def test_the_processors_of_transformers_apply() -> None:
    model = random_model()
    samples = model.generate(
        num_return_sequences=50,
        logits_processor=LogitsProcessorList(
            [SuppressTokensLogitsProcessor([2, 5]), RepetitionPenaltyLogitsProcessor(1.2)]
        ),
        generator=seeded(),
    )
    assert not torch.isin(samples, torch.tensor([2, 5])).any()


@pytest.mark.parametrize("with_processor", [False, True])
@pytest.mark.parametrize("arguments", [{"num_steps": 2}, {"order": "margin"}, {"strategy": "speculative"}])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, arguments: dict, with_processor: bool) -> None:
    model = random_model()
    asked = []
    model.lm_head.register_forward_hook(lambda module, rows, logits: asked.append(len(logits)))

    def generate() -> torch.LongTensor:
        processors = LogitsProcessorList([Distinct()] if with_processor else [])
        return model.generate(
            max_length=10, num_return_sequences=4, generator=seeded(), logits_processor=processors, **arguments
        )

    whole = generate()
    assert max(asked) > 3
    asked.clear()
    monkeypatch.setattr(token_drawer, "ROWS_PER_HEAD_CALL", 3)
    monkeypatch.setattr(sampling, "ROWS_ON_CPU", 2)
    assert torch.equal(generate(), whole)
    assert max(asked) == 3
