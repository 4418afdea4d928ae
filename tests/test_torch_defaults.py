# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What is computed depends neither on `torch.set_default_device` nor on `torch.set_default_dtype`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor

from modeling_aogpt import DataCollatorForAnyOrderLM
from tests.references import random_encoder, random_model

MASK = 11
IDS = torch.tensor([[1, MASK, MASK, 2, MASK, 5], [0, 0, 3, MASK, MASK, MASK]])
TOKENS = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
TEXT = IDS.masked_fill(IDS == MASK, 7)

GENERATIONS = [
    {"num_steps": 3},
    {"num_steps": 3, "reveal": "fixed", "schedule": "cosine"},
    {"order": "confidence", "block_length": 2, "window": 2},
    {"reveal": "entropy_bounded"},
    {"strategy": "speculative"},
    {"strategy": "speculative", "draft": "ngram"},
    {"refine_rounds": 1, "refine_length": 2},
    {"order": "left_to_right", "stop_at_eos": True, "eos_token_id": [3, 4]},
    {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.5)]},
]
LIKELIHOODS = [
    {},
    {"num_orders": 2},
    {"orders": "blocks-2"},
    {"orders": "left_to_right", "num_context_orders": 3},
    {"orders": "left_to_right", "num_context_orders": 3, "num_ranks": 6},
    {"orders": "random", "num_context_orders": 3, "num_ranks": 6},
]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# Under these, what is made without saying where, or of what precision, shows.
OTHER_DEFAULTS = {"device": partial(torch.device, "meta"), "dtype": partial(default_dtype, torch.float16)}


@pytest.fixture(params=OTHER_DEFAULTS)
def check(request: pytest.FixtureRequest) -> Callable[[Callable[[], torch.Tensor]], None]:
    def check(compute: Callable[[], torch.Tensor]) -> None:
        expected = compute()
        with OTHER_DEFAULTS[request.param]():
            actual = compute()
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)

    return check


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("arguments", GENERATIONS)
def test_generation(arguments: dict, check: Callable) -> None:
    model = random_model()
    check(lambda: model.generate(IDS, attention_mask=TOKENS, generator=seeded(), **arguments))


def test_generation_from_nothing(check: Callable) -> None:
    model = random_model()
    check(lambda: model.generate(num_return_sequences=2, max_length=5, generator=seeded()))


@pytest.mark.parametrize("injection", ["adaln", "none", "sigma"])
def test_generation_by_encoders(injection: str, check: Callable) -> None:
    model = random_encoder(target_injection=injection)
    arguments = {"num_steps": 3, "return_dict_in_generate": True} | (
        {"reveal": "euler"} if injection == "sigma" else {}
    )
    check(lambda: model.generate(IDS, attention_mask=TOKENS, generator=seeded(), **arguments).token_logprobs)


@pytest.mark.parametrize("arguments", LIKELIHOODS)
def test_likelihoods(arguments: dict, check: Callable) -> None:
    model = random_model()
    check(
        lambda: model.log_likelihood(TEXT, attention_mask=TOKENS, generator=seeded(), **arguments).log_likelihood,
    )


def test_other_likelihoods(check: Callable) -> None:
    model, encoder = random_model(), random_encoder(target_injection="sigma")
    targets = TOKENS * (TEXT == 7)

    def compute() -> torch.Tensor:
        given = {"attention_mask": TOKENS, "generator": seeded()}
        outputs = (
            model.diffusion_log_likelihood(TEXT, num_context_orders=2, **given),
            model.conditional_log_likelihood(TEXT, targets, num_orders=2, num_context_orders=2, **given),
            encoder.log_likelihood(TEXT, **given),
            encoder.log_likelihood(TEXT, num_orders=2, **given),
        )
        return torch.stack([output.log_likelihood for output in outputs])

    check(compute)


def test_forwards(check: Callable) -> None:
    model, encoder = random_model(position_encoding="rotary"), random_encoder(target_injection="sigma")
    check(lambda: model(TEXT, attention_mask=TOKENS).logits)
    check(lambda: encoder(IDS, attention_mask=TOKENS).logits)


@pytest.mark.parametrize("orders", ["uniform", "fixed-blocks-2"])
def test_batches(orders: str, check: Callable) -> None:
    features = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [4, 5, 6], "order_seed": 3}]
    check(lambda: torch.cat(list(DataCollatorForAnyOrderLM(pad_token_id=0, orders=orders)(features).values())))
