# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""No result depends on `torch.set_default_device` or `torch.set_default_dtype`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor

from modeling_aogpt import DataCollatorForAnyOrderLM
from tests.references import random_encoder, random_model, seeded

MASK = 11
IDS = torch.tensor([[1, MASK, MASK, 2, MASK, 5], [0, 0, 3, MASK, MASK, MASK]])
TOKENS = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
TEXT = IDS.masked_fill(IDS == MASK, 7)

GENERATIONS = [
    {"num_steps": 3},
    {"num_steps": 3, "unmasking": "fixed_count", "schedule": "cosine"},
    {"order": "confidence", "block_length": 2, "window": 2},
    {"unmasking": "entropy_bound"},
    {"unmasking": "threshold"},
    {"strategy": "speculative"},
    {"strategy": "speculative", "draft": "prompt_lookup"},
    {"refine_rounds": 1, "refine_length": 2},
    {"order": "left_to_right", "stop_at_eos": True, "eos_token_id": [3, 4]},
    {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.5)]},
]
LIKELIHOODS = [
    {},
    {"num_orders": 2},
    {"orders": "random", "block_length": 2},
    {"orders": "left_to_right", "ensemble_size": 3},
    {"orders": "left_to_right", "ensemble_size": 3},
    {"orders": "random", "ensemble_size": 3, "num_ranks": 6},
]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# With these defaults, a tensor created without an explicit device or dtype gives an error or another result.
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


@pytest.mark.parametrize("arguments", GENERATIONS)
def test_generation_does_not_depend_on_defaults(arguments: dict, check: Callable) -> None:
    model = random_model()
    check(lambda: model.generate(IDS, attention_mask=TOKENS, generator=seeded(), **arguments))


def test_unconditional_generation_does_not_depend_on_defaults(check: Callable) -> None:
    model = random_model()
    check(lambda: model.generate(num_return_sequences=2, max_length=5, generator=seeded()))


@pytest.mark.parametrize("injection", ["adaln", "none", "sigma"])
def test_generation_by_encoders_does_not_depend_on_defaults(injection: str, check: Callable) -> None:
    model = random_encoder(target_injection=injection)
    arguments = {"num_steps": 3, "return_dict_in_generate": True} | (
        {"unmasking": "euler"} if injection == "sigma" else {}
    )
    check(lambda: model.generate(IDS, attention_mask=TOKENS, generator=seeded(), **arguments).token_logprobs)


@pytest.mark.parametrize("arguments", LIKELIHOODS)
def test_log_likelihoods_do_not_depend_on_defaults(arguments: dict, check: Callable) -> None:
    model = random_model()
    check(
        lambda: model.log_likelihood(TEXT, attention_mask=TOKENS, generator=seeded(), **arguments).log_likelihood,
    )


def test_other_log_likelihoods_do_not_depend_on_defaults(check: Callable) -> None:
    model, encoder = random_model(), random_encoder(target_injection="sigma")
    targets = TOKENS * (TEXT == 7)

    def compute() -> torch.Tensor:
        given = {"attention_mask": TOKENS, "generator": seeded()}
        outputs = (
            model.log_likelihood(TEXT, targets=targets, num_orders=2, ensemble_size=2, **given),
            encoder.log_likelihood(TEXT, **given),
            encoder.log_likelihood(TEXT, num_orders=2, **given),
        )
        return torch.stack([output.log_likelihood for output in outputs])

    check(compute)


def test_forwards_do_not_depend_on_defaults(check: Callable) -> None:
    model, encoder = random_model(position_encoding="rotary"), random_encoder(target_injection="sigma")
    check(lambda: model(TEXT, attention_mask=TOKENS).logits)
    check(lambda: encoder(IDS, attention_mask=TOKENS).logits)


@pytest.mark.parametrize("arguments", [{}, {"orders": "shared", "block_length": 2}])
def test_batches_of_the_collator_do_not_depend_on_defaults(arguments: dict, check: Callable) -> None:
    features = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [4, 5, 6], "order_seed": 3}]
    check(lambda: torch.cat(list(DataCollatorForAnyOrderLM(pad_token_id=0, **arguments)(features).values())))
