# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from training.arguments import TrainingArguments
from training.optimization import create_optimizer, learning_rate_at, set_learning_rate

RECIPE = TrainingArguments(learning_rate=0.1, weight_decay=0.5, adam_beta1=0.8, adam_beta2=0.7, adam_epsilon=1e-3)


def test_only_tensors_of_two_or_more_dimensions_decay() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = create_optimizer(model, RECIPE)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # without a gradient decay is all that moves a weight
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name in ("0.weight", "2.weight") else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.7), 1e-3)


def test_every_weight_is_in_one_group() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    groups = create_optimizer(model, RECIPE).param_groups
    assert [[id(p) for p in group["params"]] for group in groups] == [[id(model[0].weight)], [id(model[1].bias)]]


def test_learning_rate_warms_up_and_follows_a_cosine() -> None:
    training = TrainingArguments(learning_rate=1.0, final_learning_rate=0.1, warmup_steps=4, max_steps=24)
    rates = [learning_rate_at(step, training) for step in range(24)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[14] == pytest.approx(0.55)  # half-way down
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[23] == pytest.approx(0.1, abs=0.01)
    assert rates[23] > 0.1
    training.warmup_steps = 0
    assert learning_rate_at(0, training) == 1.0


def test_learning_rate_is_set_in_every_group() -> None:
    optimizer = create_optimizer(nn.Linear(2, 2), RECIPE)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
