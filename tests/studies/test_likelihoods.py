# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Approximate likelihoods of the study of rewards, against one pass for each token in float64."""

import pytest
import torch

from eval.studies.rewards.likelihoods import LikelihoodObjective, compare_gradients, split
from tests.references import random_model, seeded
from tests.test_trajectories import reference


@pytest.mark.parametrize("likelihood", ["exact", "mean_field", "coupled"])
def test_log_probs(likelihood: str) -> None:
    model, mask = random_model(), 11
    inputs = torch.tensor([[1, mask, mask, 4, mask, mask, 5, mask], [mask, 2, mask, mask, 6, mask, mask, mask]])
    output = model.generate(inputs, order="confidence", generator=seeded(), return_dict_in_generate=True)
    parts = split(inputs.shape, seed=1)
    trajectory = {name: output[name] for name in ("sequences", "orders", "unmasking_steps")}
    result = LikelihoodObjective(model).log_probs(**trajectory, likelihood=likelihood, **parts)
    for row, (ids, order, steps) in enumerate(zip(*trajectory.values(), strict=True)):
        if likelihood == "exact":
            torch.testing.assert_close(result[row], reference(model, ids, order, steps))
            continue
        expected = reference(model, ids, order, steps.clamp(max=0))
        if likelihood == "coupled":
            for half in (parts["is_first"][row], ~parts["is_first"][row]):
                half = half & (steps >= 0)
                scores = reference(model, ids, order[half[order].long().argsort(stable=True)], half.long() - 1)
                expected = expected + parts["weights"][row] * scores
            expected = expected / 2
        torch.testing.assert_close(result[row], expected, rtol=0, atol=1e-6)


def test_weights_make_halves_unbiased() -> None:
    """The weights of a token that is in the half have the mean 1 over draws."""
    parts = split(torch.Size([200_000, 1]), seed=0)
    for half in (parts["is_first"], ~parts["is_first"]):
        assert (parts["weights"] * half).mean().item() == pytest.approx(1, abs=0.02)


def test_gradients_are_compared_without_bias() -> None:
    """Gradients of batches are a mean plus noise. The estimates are those of the means."""
    means = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).repeat_interleave(2, dim=1)
    noisy = [mean + torch.randn(20_000, 4, generator=seeded(seed)) for seed, mean in enumerate(means)]
    result = compare_gradients(*noisy)
    assert result["cosine of means with exact"] == pytest.approx(0.6, abs=0.02)
    assert result["signal in a batch"] == pytest.approx(2 / (2 + 4), abs=0.01)
