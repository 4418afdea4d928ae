# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Logits processors of the caller: the ids they get, and their effect on samples."""

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tests.references import random_encoder, random_model, seeded

MASK = 11


class ForbidVisibleTokens(LogitsProcessor):
    """Processor that forbids all visible tokens, and records the ids it gets."""

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
        {"strategy": "speculative", "draft": "prompt_lookup"},
    ],
)
def test_processors_see_all_tokens_unmasked_before(arguments: dict) -> None:
    """So the 10 tokens of a sequence are different. Verified drafts see the drafts before them."""
    samples = random_model(initializer_range=0.2).generate(
        max_length=10,
        num_return_sequences=20,
        logits_processor=LogitsProcessorList([ForbidVisibleTokens()]),
        generator=seeded(),
        **arguments,
    )
    assert all(len(set(row)) == 10 for row in samples.tolist())


def test_processors_of_encoders_see_all_tokens_unmasked_before() -> None:
    samples = random_encoder(initializer_range=0.2).generate(
        max_length=10, logits_processor=LogitsProcessorList([ForbidVisibleTokens()]), generator=seeded()
    )
    assert len(set(samples[0].tolist())) == 10


def test_processors_get_masks_at_masked_positions_and_padding() -> None:
    processor = ForbidVisibleTokens()
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
def test_ids_at_padding_do_not_affect_processors(padding: int, strategy: str) -> None:
    def generate(ids: torch.LongTensor, attention_mask: torch.Tensor | None = None) -> torch.LongTensor:
        processors = [RepetitionPenaltyLogitsProcessor(3.0)]
        return random_model(initializer_range=0.2).generate(
            ids,
            attention_mask=attention_mask,
            logits_processor=processors,
            strategy=strategy,
            order="left_to_right",
            generator=seeded(),
        )

    ids = torch.tensor([[5, MASK, MASK, MASK, MASK, MASK]])
    padded = torch.nn.functional.pad(ids, (2, 0), value=padding)
    assert torch.equal(generate(padded, padded != padding)[:, 2:], generate(ids))


def test_processors_of_transformers_apply() -> None:
    model = random_model()
    samples = model.generate(
        num_return_sequences=50,
        logits_processor=LogitsProcessorList(
            [SuppressTokensLogitsProcessor([2, 5]), RepetitionPenaltyLogitsProcessor(1.2)]
        ),
        generator=seeded(),
    )
    assert not torch.isin(samples, torch.tensor([2, 5])).any()


def test_processors_may_be_a_plain_list() -> None:
    assert (random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(10)])]) == 10).all()


@pytest.mark.parametrize("arguments", [{}, {"strategy": "speculative"}, {"unmasking": "entropy_bound"}])
def test_processors_that_forbid_every_token_are_reported(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"logits are not finite .* that no logits processor forbids every token"):
        random_model().generate(logits_processor=[SuppressTokensLogitsProcessor([*range(11)])], **arguments)
