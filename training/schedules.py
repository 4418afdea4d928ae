# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Values that change during a run, as functions of the step: the learning rate and the left-to-right fraction."""

import math

from training.arguments import TrainingArguments


def learning_rate_at(step: int, training: TrainingArguments) -> float:
    """
    Return the learning rate of a step in 0 ... `max_steps` - 1.

    It rises linearly until step `warmup_steps`. With `"cosine"`, it then falls along half a cosine; with
    `"warmup_stable_decay"`, linearly in the last `decay_steps` steps. It would reach its final value at `max_steps`.
    """
    peak, final, warmup_steps = training.learning_rate, training.final_learning_rate, training.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if training.learning_rate_schedule == "warmup_stable_decay":
        remaining = min((training.max_steps - step) / training.decay_steps, 1.0)
        return final + (peak - final) * remaining if remaining < 1 else peak
    progress = (step - warmup_steps) / (training.max_steps - warmup_steps)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2


def first_decay_step(training: TrainingArguments) -> int | None:
    """Return the first step of the final decay, before which `max_steps` has no effect, or None for a cosine."""
    if training.learning_rate_schedule == "warmup_stable_decay":
        return training.max_steps - training.decay_steps
    return None


def num_common_steps(one: TrainingArguments, other: TrainingArguments) -> int:
    """Return the number of steps for which the learning rates and left-to-right fractions of two runs are the same."""
    num_steps = min(one.max_steps, other.max_steps)
    return next((step for step in range(num_steps) if _values_at(step, one) != _values_at(step, other)), num_steps)


def _values_at(step: int, training: TrainingArguments) -> tuple[float, ...]:
    num_steps = training.left_to_right_steps
    return learning_rate_at(step, training), 0.0 if num_steps is None else min(step / num_steps, 1.0)
