# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Schedules: grids of masked fractions, and the steps at which positions are unmasked."""

import math
from types import SimpleNamespace

import pytest
import torch

from modeling_aogpt.unmasking import (
    Candidates,
    EntropyBoundUnmasking,
    ScheduledUnmasking,
    ThresholdUnmasking,
    draw_step_sizes,
    masked_fractions,
)
from tests.references import chi_square, random_encoder, seeded


def test_masked_fractions_fall_from_one_to_zero() -> None:
    assert masked_fractions(4, "linear").tolist() == [1, 0.75, 0.5, 0.25, 0]
    expected = [1, math.cos(math.pi / 6), math.cos(math.pi / 3), 0]
    assert masked_fractions(3, "cosine").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_bernoulli_steps_have_the_probabilities_of_the_schedule(schedule: str) -> None:
    num_masked, num_steps = torch.full((4000,), 10), 5
    counts = draw_step_sizes(num_masked, num_steps, schedule, "bernoulli", seeded()).sum(dim=0).double()
    fractions = masked_fractions(num_steps, schedule)
    assert chi_square(counts, fractions[:-1] - fractions[1:]) < 1


def test_bernoulli_leaves_as_many_steps_empty_as_expected() -> None:
    """The expected number of non-empty steps is T (1 - (1 - 1 / T)^n)."""
    n = num_steps = 16
    sizes = draw_step_sizes(torch.full((2000,), n), num_steps, "linear", "bernoulli", seeded())
    num_non_empty = (sizes > 0).sum(dim=1).double()
    expected = num_steps * (1 - (1 - 1 / num_steps) ** n)
    assert abs(num_non_empty.mean() - expected) < 4 * num_non_empty.std() / 2000**0.5


@pytest.mark.parametrize(
    ("num_masked", "num_steps", "schedule", "counts"),
    [
        (6, 3, "linear", [2, 2, 2]),
        (7, 3, "linear", [2, 2, 3]),
        (10, 10, "linear", [1] * 10),
        (3, 5, "linear", [1, 1, 1, 0, 0]),
        (12, 3, "cosine", [1, 5, 6]),
        (1000, 1000, "linear", [1] * 1000),
    ],
)
def test_fixed_counts(num_masked: int, num_steps: int, schedule: str, counts: list[int]) -> None:
    assert draw_step_sizes(torch.tensor([num_masked]), num_steps, schedule, "fixed_count").tolist() == [counts]


@pytest.mark.parametrize("unmasking", ["bernoulli", "fixed_count"])
def test_sequences_with_different_numbers_of_masks_are_unmasked_completely(unmasking: str) -> None:
    num_masked = torch.tensor([0, 2, 5])
    sizes = draw_step_sizes(num_masked, 4, "linear", unmasking, seeded())
    assert sizes.min() >= 0
    assert sizes.sum(dim=1).tolist() == num_masked.tolist()


def test_bernoulli_steps_do_not_depend_on_other_sequences() -> None:
    sizes = draw_step_sizes(torch.tensor([1, 10]).repeat(4000), 4, "linear", "bernoulli", seeded())
    counts = sizes[::2].sum(dim=0)
    assert chi_square(counts, torch.full((4,), 0.25)) < 1


@pytest.mark.parametrize(
    ("rule", "name", "values", "expected"),
    [  # in floating-point numbers, 0.1 + 0.2 + 0.3 - 0.3 is more than 0.3
        (EntropyBoundUnmasking(0.3), "entropy", [0.1, 0.2, 0.3, 0.4], [True, True, True, False]),
        (ThresholdUnmasking(0.5), "confidence", [0.4, 0.5, 0.6], [False, True, True]),
    ],
)
def test_values_equal_to_the_bound_are_allowed(
    rule: EntropyBoundUnmasking | ThresholdUnmasking, name: str, values: list[float], expected: list[bool]
) -> None:
    measured = torch.tensor([values], dtype=torch.float64)
    candidates = Candidates(torch.ones_like(measured, dtype=torch.bool), torch.ones(1).long(), {name: measured})
    assert rule.select(0, candidates)[0].tolist() == expected


def test_history_has_only_steps_that_unmask_something() -> None:
    model = random_encoder(target_injection="sigma", position_encoding="rotary")
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.fill_(-0.5)
    arguments = {"max_length": 4, "num_steps": 12, "unmasking": "euler", "generator": seeded()}
    output = model.generate(output_history=True, return_dict_in_generate=True, **arguments)
    assert len(output.history) == 1 + len(output.unmasking_steps.unique()) < 1 + output.num_forward_passes


def test_steps_that_unmask_nothing_are_skipped() -> None:
    """So that a million steps for four tokens take as many passes as they unmask tokens in, and no time."""
    model = random_encoder()
    arguments = {"max_length": 4, "order": "left_to_right", "num_steps": 10**6, "return_dict_in_generate": True}
    output = model.generate(**arguments, generator=seeded())
    assert output.num_forward_passes == len(output.unmasking_steps.unique()) <= 4
    rule = ScheduledUnmasking(10**6, "linear", "bernoulli", seeded())
    state = SimpleNamespace(num_masked=torch.tensor([4]))
    assert [step for step, _ in rule.steps(state)] == sorted(output.unmasking_steps.flatten().tolist())
    assert next(step for step, _ in rule.steps(state)) >= 10**6  # refinement continues the count
