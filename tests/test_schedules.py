# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from training.arguments import TrainingArguments
from training.optimization import first_decay_step, learning_rate_at, num_common_steps

COSINE = TrainingArguments(learning_rate=1.0, final_learning_rate=0.1, warmup_steps=4, max_steps=24)
STABLE = replace(COSINE, learning_rate_schedule="warmup_stable_decay", decay_steps=10)


def test_learning_rate_warms_up_and_follows_a_cosine() -> None:
    rates = [learning_rate_at(step, COSINE) for step in range(24)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[14] == pytest.approx(0.55)  # halfway between peak and end
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[23] == pytest.approx(0.1, abs=0.01)
    assert rates[23] > 0.1
    assert learning_rate_at(0, replace(COSINE, warmup_steps=0)) == 1.0


def test_learning_rate_stays_at_the_peak_until_it_decays_linearly() -> None:
    rates = [learning_rate_at(step, STABLE) for step in range(24)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:15] == [1.0] * 11
    assert rates[14:] == pytest.approx([1 - 0.09 * step for step in range(10)])
    assert (first_decay_step(STABLE), first_decay_step(COSINE)) == (14, None)


def test_steps_that_do_not_depend_on_the_length_of_the_run() -> None:
    assert num_common_steps(STABLE, replace(STABLE, max_steps=30)) == 15  # the decay starts at the peak
    assert num_common_steps(STABLE, replace(STABLE, decay_steps=8)) == 15
    assert num_common_steps(COSINE, replace(COSINE, max_steps=30)) == 5
    assert num_common_steps(STABLE, STABLE) == 24


def test_steps_whose_orders_do_not_depend_on_the_length_of_the_run() -> None:
    falling = replace(STABLE, left_to_right_fraction=1.0, final_left_to_right_fraction=0.0, left_to_right_steps=6)
    assert num_common_steps(falling, replace(falling, max_steps=30)) == 15
    assert num_common_steps(falling, replace(falling, left_to_right_steps=7)) == 1
