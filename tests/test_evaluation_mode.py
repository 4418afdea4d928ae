# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Evaluation mode during inference."""

from collections.abc import Callable

import pytest
import torch

from modeling_aogpt.devices import evaluation_mode
from tests.references import random_encoder, random_model


def training_flags(model: torch.nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_modes_are_restored_after_an_error() -> None:
    model = random_model().train()
    model.model.layers[1].eval()
    modes = training_flags(model)
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert training_flags(model) == modes


def test_the_last_of_several_threads_restores_the_modes() -> None:
    model = random_model().train()
    other = evaluation_mode(model)
    with evaluation_mode(model):
        other.__enter__()
    assert not any(training_flags(model))
    other.__exit__(None, None, None)
    assert all(training_flags(model))


DECODER_METHODS = ("generate", "infill", "log_likelihood")
ENCODER_METHODS = ("generate", "log_likelihood")
METHODS = [(random_model, name) for name in DECODER_METHODS] + [(random_encoder, name) for name in ENCODER_METHODS]


@pytest.mark.parametrize(("make_model", "method"), METHODS)
def test_inference_uses_evaluation_mode(make_model: Callable, method: str) -> None:
    model = make_model().train()
    modes: list[bool] = []
    model.model.layers[0].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    ids = torch.tensor([[3, 1, 4, 5]])
    if method in ("generate", "infill"):
        ids[0, 1] = model.config.mask_token_id
    getattr(model, method)(ids)
    assert modes
    assert not any(modes)
    assert all(training_flags(model))
