# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Recorded passes, with recordings that work without a GPU. `test_cuda.py` tests CUDA graphs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from eval.benchmarks.contenders import DECODERS
from modeling_aogpt import cuda_graphs, decoding_state, sampling
from modeling_aogpt.cuda_graphs import Arguments, Recordings
from tests.references import random_encoder, random_model, seeded

IDS = torch.randint(0, 11, (3, 12), generator=seeded(1)).masked_fill(torch.arange(12) % 2 == 0, 11)
ATTENTION_MASK = torch.ones(3, 12, dtype=torch.long)
ATTENTION_MASK[1, 8:] = ATTENTION_MASK[2, :3] = 0
DECODING: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "Bernoulli": {"num_steps": 4},
    "confidence": {"order": "confidence", "num_steps": 4},
    "refined": {"refine_rounds": 2, "refine_length": 2},
    "speculative": {"strategy": "speculative"},
}


class SimulatedRecording:
    """Recording without a GPU: a replay runs the function on the recorded arguments, and overwrites the result."""

    replays: Counter[str] = Counter()  # key: name of the function

    def __init__(self, function: Callable[..., torch.Tensor], arguments: Arguments, place: None) -> None:
        self.function, self.result = function, None
        self.arguments = tuple(None if values is None else values.clone() for values in arguments)

    def replay(self, arguments: Arguments) -> torch.Tensor:
        for recorded, values in zip(self.arguments, arguments, strict=True):
            if recorded is not None:
                recorded.copy_(values)
        result = self.function(*self.arguments)
        if self.result is None:
            self.result = result
        elif isinstance(result, tuple):
            for recorded, values in zip(self.result, result, strict=True):
                recorded.copy_(values)
        else:
            self.result.copy_(result)
        SimulatedRecording.replays[self.function.__name__] += 1
        return self.result


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> type[SimulatedRecording]:
    monkeypatch.setattr(cuda_graphs, "Recording", SimulatedRecording)
    monkeypatch.setattr(cuda_graphs, "make_place", lambda arguments: None)
    SimulatedRecording.replays.clear()
    for module in (decoding_state, sampling):
        monkeypatch.setattr(module, "can_record", lambda model, device: True)
    return SimulatedRecording


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in ("decoder", "neighbors", "encoder", "sedd")
        for kind in DECODING
        if kind != "speculative" or name in ("decoder", "neighbors")
    ],
)
def test_recorded_passes_do_not_change_samples(
    name: str, kind: str, recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {
        "decoder": random_model,
        "neighbors": lambda: random_model(neighbor_embeddings=True),
        "encoder": random_encoder,
        "sedd": lambda: random_encoder(target_injection="sigma", position_encoding="rotary"),
    }[name]()

    is_encoder = name in ("encoder", "sedd")

    def generate() -> torch.LongTensor:
        return model.generate(IDS, attention_mask=ATTENTION_MASK, generator=seeded(), **DECODING[kind])

    expected = generate()
    assert not recordings.replays  # too few passes
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    monkeypatch.setattr(sampling, "NUM_CALLS_BEFORE_RECORDING", 1)
    assert torch.equal(generate(), expected)
    assert recordings.replays["_run" if is_encoder else "_run_padded_rows"] > 0
    assert kind != "one at a time" or recordings.replays["_draw"] > 0


def test_generations_with_many_passes_are_recorded(recordings: type[SimulatedRecording]) -> None:
    model = random_model(max_position_embeddings=40)
    model.generate(max_length=40, num_steps=20, unmasking="fixed_count")
    assert not recordings.replays
    output = model.generate(max_length=40, return_dict_in_generate=True)
    assert (output.num_forward_passes, output.num_rows) == (40, 40)
    assert recordings.replays == {"_run_padded_rows": 39, "_draw": 32}


def test_large_passes_are_not_recorded(recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    monkeypatch.setattr(decoding_state, "MAX_RECORDED_ROWS", 5)
    random_model().generate(num_return_sequences=6)
    assert recordings.replays["_run_padded_rows"] == 0
    random_model().generate(num_return_sequences=5)
    assert recordings.replays["_run_padded_rows"] > 0


def test_the_contender_without_graphs_records_nothing(recordings: type[SimulatedRecording]) -> None:
    model = random_model(max_position_embeddings=40)
    ids = DECODERS["no-graphs"](model).sample(2, 40, 40)
    assert not recordings.replays
    assert ids.shape == DECODERS["decoder"](model).sample(2, 40, 40).shape
    assert recordings.replays


def test_a_recording_is_made_in_the_second_call_with_the_same_shapes(recordings: type[SimulatedRecording]) -> None:
    calls, calculator = [], Recordings()

    def double(values: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        calls.append(values.shape)
        return values * 2 if other is None else values * other

    for number, length, other, num_replays in [
        *((1.0, 2, None, 0), (2.0, 2, None, 1), (3.0, 3, None, 1), (4.0, 2, None, 2)),
        *((5.0, 3, None, 3), (6.0, 2, 3.0, 3), (7.0, 2, 3.0, 4)),
    ]:
        values = torch.full((length,), number)
        found = calculator.call(double, values, None if other is None else torch.full((length,), other))
        assert torch.equal(found, values * (2 if other is None else other))
        assert recordings.replays.total() == num_replays


def test_after_a_failed_recording_nothing_is_recorded(
    recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(SimulatedRecording):
        def __init__(self, *arguments: Any) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "Recording", Failing)
    calculator, values = Recordings(), torch.ones(2)
    assert all(torch.equal(calculator.call(torch.neg, values), -values) for _ in range(4))
    monkeypatch.setattr(cuda_graphs, "Recording", recordings)
    assert all(torch.equal(calculator.call(torch.neg, values), -values) for _ in range(4))
    assert not recordings.replays


def test_models_on_a_cpu_are_not_recorded() -> None:
    model = random_model()
    assert not cuda_graphs.can_record(model.model, model.device)
