# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from modeling_aogpt.schedule import draw_reveal_steps, masked_fractions


def test_grids_go_from_all_masked_to_none() -> None:
    assert masked_fractions(4, "linear").tolist() == [1, 0.75, 0.5, 0.25, 0]
    expected = [1, math.cos(math.pi / 6), math.cos(math.pi / 3), 0]
    assert masked_fractions(3, "cosine").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_bernoulli_steps_have_the_probabilities_of_the_grid(schedule: str) -> None:
    hidden, num_steps = torch.full((4000,), 10), 5
    steps = draw_reveal_steps(hidden, num_steps, schedule, "bernoulli", torch.Generator().manual_seed(0))
    assert (steps.diff(dim=1) >= 0).all()
    counts = steps.flatten().bincount(minlength=num_steps).double()
    fractions = masked_fractions(num_steps, schedule)
    expected = (fractions[:-1] - fractions[1:]) * hidden.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 23.5  # chi-square, 4 degrees of freedom, 1e-4


def test_bernoulli_leaves_steps_empty_as_often_as_the_lemma_says() -> None:
    """Expected non-empty steps: T (1 - (1 - 1 / T)^n)."""
    n = num_steps = 16
    steps = draw_reveal_steps(
        torch.full((2000,), n), num_steps, "linear", "bernoulli", torch.Generator().manual_seed(0)
    )
    non_empty = torch.stack([(steps == step).any(1) for step in range(num_steps)]).sum(0).double()
    expected = num_steps * (1 - (1 - 1 / num_steps) ** n)
    assert abs(non_empty.mean() - expected) < 4 * non_empty.std() / 2000**0.5


@pytest.mark.parametrize(
    ("hidden", "num_steps", "schedule", "counts"),
    [
        (6, 3, "linear", [2, 2, 2]),
        (7, 3, "linear", [2, 2, 3]),
        (10, 10, "linear", [1] * 10),
        (3, 5, "linear", [1, 1, 1, 0, 0]),
        (12, 3, "cosine", [1, 5, 6]),
        (1000, 1000, "linear", [1] * 1000),
    ],
)
def test_fixed_counts(hidden: int, num_steps: int, schedule: str, counts: list[int]) -> None:
    steps = draw_reveal_steps(torch.tensor([hidden]), num_steps, schedule, "fixed")
    assert steps[0].bincount(minlength=num_steps).tolist() == counts


@pytest.mark.parametrize("reveal", ["bernoulli", "fixed"])
def test_ragged_batches_reveal_each_row_whole(reveal: str) -> None:
    hidden = torch.tensor([0, 2, 5])
    steps = draw_reveal_steps(hidden, 4, "linear", reveal, torch.Generator().manual_seed(0))
    assert (steps < 4).sum(1).tolist() == hidden.tolist()
    assert (steps.diff(dim=1) >= 0).all()


def test_a_position_draws_its_step_whatever_else_is_in_the_batch() -> None:
    steps = draw_reveal_steps(
        torch.tensor([1, 10]).repeat(4000), 4, "linear", "bernoulli", torch.Generator().manual_seed(0)
    )
    counts = steps[::2, 0].bincount(minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 21.2  # chi-square, 3 degrees of freedom, 1e-4
