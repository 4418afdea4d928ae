# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from copy import deepcopy

import pytest
import torch
from torch import nn

from training.ema import ExponentialMovingAverage


def toy(value: float) -> nn.Linear:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def test_average_follows_the_released_decay() -> None:
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


def test_average_is_a_frozen_float32_copy() -> None:
    model = toy(1.0).bfloat16()
    ema = ExponentialMovingAverage(model, decay=0.9)
    ema.update(model)
    assert all(average.dtype == torch.float32 and not average.requires_grad for average in ema.weights.values())
    assert all(p.dtype == torch.bfloat16 and p.requires_grad for p in model.parameters())
    ema.weights["weight"].zero_()
    assert model.weight.ne(0).all()


def test_tied_weights_move_once() -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    nn.init.zeros_(tied[0].weight)
    ema = ExponentialMovingAverage(tied, decay=0.9)
    with torch.no_grad():
        tied[0].weight.fill_(11.0)
    ema.update(tied)
    assert list(ema.weights) == ["0.weight"]
    torch.testing.assert_close(ema.weights["0.weight"], torch.full((2, 2), 9.0))  # 11 * (1 - 2/11)


def test_filled_model_has_the_averages_and_shares_them() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    blank = deepcopy(tied).to("meta")
    ema = ExponentialMovingAverage(tied, decay=0.9)
    with torch.no_grad():
        tied[0].weight.fill_(11.0)
    ema.update(tied)
    model = ema.fill(blank)
    assert not model.training
    for index in (0, 1):
        assert model[index].weight.data_ptr() == ema.weights["0.weight"].data_ptr()
        assert torch.equal(model[index].bias, ema.weights[f"{index}.bias"])
        assert not model[index].weight.requires_grad
    assert all(parameter.is_meta and parameter.requires_grad for parameter in blank.parameters())


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_impossible_decay_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        ExponentialMovingAverage(toy(0.0), decay)
