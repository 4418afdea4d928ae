# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation mode during inference, also if several threads use one model."""

import threading
from collections.abc import Callable

import pytest
import torch

from modeling_aogpt.devices import evaluation_mode
from tests.references import random_encoder, random_model, seeded


def training_flags(model: torch.nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_last_context_to_exit_restores_the_modes() -> None:
    """Contexts of different threads may exit in any order."""
    model = random_model().train()
    model.model.layers[1].eval()
    modes = training_flags(model)
    first, second = evaluation_mode(model), evaluation_mode(model)
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
        step()
        assert not any(training_flags(model))
    second.__exit__(None, None, None)
    assert training_flags(model) == modes


def test_modes_are_restored_after_an_error() -> None:
    model = random_model().train()
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert all(training_flags(model))


DECODER_METHODS = ("generate", "infill", "log_likelihood", "conditional_log_likelihood")
ENCODER_METHODS = ("generate", "log_likelihood", "conditional_log_likelihood")
METHODS = [(random_model, name) for name in DECODER_METHODS] + [(random_encoder, name) for name in ENCODER_METHODS]


@pytest.mark.parametrize(("make_model", "method"), METHODS)
def test_inference_uses_evaluation_mode(make_model: Callable, method: str) -> None:
    model = make_model().train()
    modes: list[bool] = []
    model.model.layers[0].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    ids = torch.tensor([[3, 1, 4, 5]])
    if method in ("generate", "infill"):
        ids[0, 1] = model.config.mask_token_id
    arguments = {"targets": ids == 4} if method == "conditional_log_likelihood" else {}
    getattr(model, method)(ids, **arguments)
    assert modes
    assert not any(modes)
    assert all(training_flags(model))


def test_two_threads_generate_with_one_model_in_training_mode() -> None:
    """The first thread finishes while the second one is still generating."""
    model = random_model().train()
    model.gradient_checkpointing_enable()
    has_first_started, has_second_started, has_first_finished = (threading.Event() for _ in range(3))
    results: dict[str, torch.LongTensor] = {}

    class Streamer:
        def __init__(self, name: str) -> None:
            self.name = name

        def put(self, value: torch.LongTensor) -> None:
            if self.name == "first":
                has_first_started.set()
                has_second_started.wait(60)
            else:
                has_second_started.set()
                has_first_finished.wait(60)

        def end(self) -> None:
            pass

    def generate(name: str) -> None:
        results[name] = model.generate(order="left_to_right", streamer=Streamer(name), generator=seeded())
        if name == "first":
            has_first_finished.set()

    threads = [threading.Thread(target=generate, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    has_first_started.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    expected = random_model().generate(order="left_to_right", generator=seeded())
    assert all(torch.equal(results[name], expected) for name in ("first", "second"))
    assert all(training_flags(model))
