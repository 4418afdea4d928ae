# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
import torch

from modeling_aogpt.evaluation_mode import evaluation_mode
from tests.references import random_model


def modes_of(model: torch.nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_modes_return_when_the_last_has_left() -> None:
    """In whatever order they leave, as two threads may that generate at once."""
    model = random_model().train()
    model.model.layers[1].eval()
    modes = modes_of(model)
    first, second = evaluation_mode(model), evaluation_mode(model)
    for step, expected in (
        (first.__enter__, False),
        (second.__enter__, False),
        (lambda: first.__exit__(None, None, None), False),
    ):
        step()
        assert any(modes_of(model)) == expected
    second.__exit__(None, None, None)
    assert modes_of(model) == modes


def test_modes_return_after_an_error() -> None:
    model = random_model().train()
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert all(modes_of(model))


def test_two_threads_generate_with_one_model_in_training() -> None:
    """The one that began first ends while the other is still about its work."""
    model = random_model().train()
    model.gradient_checkpointing_enable()
    is_first_within, is_second_within, is_first_done = (threading.Event() for _ in range(3))
    results: dict[str, torch.LongTensor] = {}

    class Streamer:
        def __init__(self, name: str) -> None:
            self.name = name

        def put(self, value: torch.LongTensor) -> None:
            if self.name == "first":
                is_first_within.set()
                is_second_within.wait(60)
            else:
                is_second_within.set()
                is_first_done.wait(60)

        def end(self) -> None:
            pass

    def generate(name: str) -> None:
        generator = torch.Generator().manual_seed(0)
        results[name] = model.generate(order="left_to_right", streamer=Streamer(name), generator=generator)
        if name == "first":
            is_first_done.set()

    threads = [threading.Thread(target=generate, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    is_first_within.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    expected = random_model().generate(order="left_to_right", generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(results[name], expected) for name in ("first", "second"))
    assert all(modes_of(model))
