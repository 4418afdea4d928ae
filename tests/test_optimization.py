# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import torch
from torch import nn

from training.arguments import TrainingArguments
from training.optimization import ExponentialMovingAverage, create_optimizer

RECIPE = TrainingArguments(learning_rate=0.1, weight_decay=0.5, adam_beta1=0.8, adam_beta2=0.7, adam_epsilon=1e-3)


def test_weight_decay_applies_to_tensors_of_two_or_more_dimensions() -> None:
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


# -------------------------------------------------------------------------------------------------- moving average


def toy(value: float) -> nn.Linear:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def test_the_average_has_the_released_decay() -> None:
    model = toy(0.0)
    ema = ExponentialMovingAverage(model, decay=0.5)
    expected = 0.0
    for update in range(1, 20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(update))
        ema.update(model)
        decay = min(0.5, (1 + update) / (10 + update))  # 2/11 first; 0.5 from the eighth update on
        expected = decay * expected + (1 - decay) * update
        for parameter in ema.weights.values():
            torch.testing.assert_close(parameter, torch.full_like(parameter, expected))
    assert ema.num_updates == 19


def test_the_average_is_a_float32_copy() -> None:
    model = toy(1.0).bfloat16()
    ema = ExponentialMovingAverage(model, decay=0.9)
    ema.update(model)
    assert all(average.dtype == torch.float32 and not average.requires_grad for average in ema.weights.values())
    assert all(p.dtype == torch.bfloat16 and p.requires_grad for p in model.parameters())
    ema.weights["weight"].zero_()
    assert model.weight.ne(0).all()


def test_averages_and_weights_are_exchanged_for_a_while() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    ema = ExponentialMovingAverage(tied, decay=0.9)
    before = tied[0].weight.detach().clone()
    with torch.no_grad():
        tied[0].weight.fill_(11.0)
    with ema.applied_to(tied):
        assert torch.equal(tied[1].weight, before)
        assert ema.weights["0.weight"].eq(11.0).all()
    assert tied[1].weight.eq(11.0).all()
    assert torch.equal(ema.weights["0.weight"], before)
