# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Recorded passes, with recordings that work without a GPU. `test_cuda.py` tests CUDA graphs."""

import gc
import math
import weakref
from collections import Counter
from collections.abc import Callable
from threading import Thread
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from modeling_aogpt import cuda_graphs, decoding_state, devices, sampling, validation
from modeling_aogpt.cuda_graphs import Arguments, Recordings, can_record, records_itself
from modeling_aogpt.decoding_state import CachedDecodingState, PassShape
from modeling_aogpt.devices import without_cudnn_attention
from tests.references import random_encoder, random_model, seeded

IDS = torch.randint(0, 11, (3, 12), generator=seeded(1)).masked_fill(torch.arange(12) % 2 == 0, 11)
ATTENTION_MASK = torch.ones(3, 12, dtype=torch.long)
ATTENTION_MASK[1, 8:] = ATTENTION_MASK[2, :3] = 0
DECODING: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "Bernoulli": {"num_steps": 8},
    "confidence": {"order": "confidence"},
    "entropy bound": {"unmasking": "entropy_bound", "entropy_bound": 0.0},
    "refined": {"refine_rounds": 2, "refine_length": 2},
    "truncated": {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
    "end of text": {"order": "left_to_right", "stop_at_eos": True, "eos_token_id": 5},
}
ROWS = ("input_ids", "positions", "target_positions")
SPECULATION: dict[str, dict[str, Any]] = {
    "speculative": {"strategy": "speculative"},
    "prompt lookup": {"strategy": "speculative", "draft": "prompt_lookup"},
}
FEW = ("one at a time", "Bernoulli")
GROUPED = {"position_encoding": "rotary", "num_attention_heads": 4, "num_key_value_heads": 2, "norm": "layernorm"}
MODELS: dict[str, Callable[[], Any]] = {
    "decoder": random_model,
    "rotary": lambda: random_model(position_encoding="rotary"),
    "grouped": lambda: random_model(**GROUPED, no_rope_layers=[0]),
    "grouped, no norms": lambda: random_model(**GROUPED, qk_norm=False, attention_bias=False, start_token_id=3),
    "encoder": random_encoder,
    "sedd": lambda: random_encoder(target_injection="sigma", position_encoding="rotary"),
}


class SimulatedRecording:
    """
    Recording without a GPU: a list of operations, traced from one call. A replay runs no other Python code.

    As with CUDA graphs in shared memory, a replay makes all earlier results unusable.
    """

    replays: Counter[str] = Counter()  # key: name of the function
    results: list[torch.Tensor] = []  # of the last replay

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, device: torch.device, pool: tuple[int, int]
    ) -> None:
        self.name = function.func.__name__
        self.arguments = tuple(None if values is None else values.clone() for values in arguments)
        state = getattr(function.func, "__self__", None)
        tensors = []
        if isinstance(state, CachedDecodingState):
            tensors = [state.ids, state.token_logprobs, state.unmasking_steps]
            tensors += [values for layer in state.cache.layers for values in layer]
        before = [values.clone() for values in tensors]
        self.graph = make_fx(lambda *values: function(*values))(*self.arguments)  # also runs the function
        for values, saved in zip(tensors, before, strict=True):
            values.copy_(saved)

    def replay(self, arguments: Arguments) -> Any:
        for recorded, values in zip(self.arguments, arguments, strict=True):
            if recorded is not None:
                recorded.copy_(values)
        for values in self.results:
            values.fill_(math.nan if values.is_floating_point() else -1)
        result = self.graph(*self.arguments)
        self.results[:] = result if isinstance(result, tuple) else [result]
        self.replays[self.name] += 1
        return result


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> type[SimulatedRecording]:
    monkeypatch.setattr(cuda_graphs, "Recording", SimulatedRecording)
    monkeypatch.setattr(cuda_graphs, "_FAILED", WeakSet())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    for module in (devices, validation):  # values cannot be read while operations are traced
        monkeypatch.setattr(module, "is_readable", lambda values: get_proxy_mode() is None)
    for module in (decoding_state, sampling):
        monkeypatch.setattr(module, "can_record", lambda model, device: model not in cuda_graphs._FAILED)
    SimulatedRecording.replays.clear()
    SimulatedRecording.results.clear()
    return SimulatedRecording


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in MODELS for kind in DECODING if not name.startswith("grouped") or kind in FEW]
    + [("decoder", kind) for kind in SPECULATION],
)
def test_recorded_passes_do_not_change_samples(
    name: str, kind: str, recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()

    def generate() -> torch.LongTensor:
        return model.generate(IDS, attention_mask=ATTENTION_MASK, generator=seeded(), **(DECODING | SPECULATION)[kind])

    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_RECORD", 100)
    expected = generate()
    assert not recordings.replays  # too few passes
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_RECORD", 1)
    monkeypatch.setattr(decoding_state.EncoderDecodingState, "num_calls_before_recording", 1)
    assert torch.equal(generate(), expected)
    num_passes = recordings.replays["_run"] + recordings.replays["_run_rows"] + recordings.replays["_fill_in_rows"]
    assert num_passes > 0 or kind == "prompt lookup"  # which takes few passes
    num_draws = recordings.replays["_draw"] + recordings.replays["_fill_in_rows"]
    assert (num_draws > 0) == (kind in ("one at a time", "Bernoulli", "refined", "truncated", "end of text"))


def test_generations_with_many_passes_are_recorded(recordings: type[SimulatedRecording]) -> None:
    model = random_model(max_position_embeddings=40)
    model.generate(max_length=40, num_steps=3, unmasking="fixed_count")
    assert not recordings.replays
    output = model.generate(max_length=40, return_dict_in_generate=True)
    assert (output.num_forward_passes, output.num_rows) == (40, 40)
    assert recordings.replays == {"_fill_in_rows": 38}


def test_recordings_are_freed_with_the_generation(
    recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are freed at once, not by the garbage collector, so the next generation can use the memory of the cache."""
    made, make = [], Recordings.__init__

    def note(self: Recordings, *arguments: Any) -> None:
        make(self, *arguments)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Recordings, "__init__", note)
    gc.disable()
    try:
        for order in ("random", "confidence"):
            random_model().generate(max_length=12, order=order)
            assert recordings.replays
            assert [reference() for reference in made] == [None] * len(made)
    finally:
        gc.enable()


def test_long_generations_use_cudnn_attention(
    recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes time to prepare."""
    model, uses = random_model(max_position_embeddings=40), []
    run = CachedDecodingState._fill_in_rows

    def note(state: CachedDecodingState, *arguments: Any) -> torch.Tensor:
        uses.append(state._recordings.use_cudnn)
        return run(state, *arguments)

    monkeypatch.setattr(CachedDecodingState, "_fill_in_rows", note)
    for length, expected in ((40, {True}), (39, {False})):
        monkeypatch.setattr(decoding_state, "MIN_PASSES_FOR_CUDNN", 40)
        uses.clear()
        model.generate(max_length=length)
        assert set(uses) == expected
    assert recordings.replays


def test_passes_of_generations_with_large_caches_read_only_the_quarters_that_they_need(
    recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, numbers, run = random_model(max_position_embeddings=40), set(), CachedDecodingState._run_rows
    expected = model.generate(max_length=40, generator=seeded())

    def note(state: CachedDecodingState, shape: PassShape, *arguments: torch.Tensor) -> torch.Tensor:
        numbers.add(shape.num_slots)
        return run(state, shape, *arguments)

    monkeypatch.setattr(CachedDecodingState, "_run_rows", note)
    monkeypatch.setattr(decoding_state, "MIN_BYTES_TO_SLICE", 40 * 40 * 2 * 2 * 16 * 8)  # passes, slots, layers, ...
    monkeypatch.setattr(decoding_state, "MIN_SLOTS_PER_SLICE", 1)
    assert torch.equal(model.generate(max_length=40, generator=seeded()), expected)
    assert numbers == {1, 16, 32, 40}
    numbers.clear()
    model.generate(max_length=39, generator=seeded())
    assert numbers == {1, 39}


def test_large_passes_are_not_recorded(recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 sequences and 3 tokens per step, a pass has 5 rows for each sequence. If it is recorded, it has 8."""
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_RECORD", 1)
    model, arguments = random_model(), {"num_return_sequences": 4, "num_steps": 4, "unmasking": "fixed_count"}
    for most, num_rows in ((19, 4 * (3 + 5 + 5 + 5)), (20, 4 * (3 + 8 + 8 + 8))):
        monkeypatch.setattr(decoding_state, "MAX_RECORDED_ROWS", most)
        recordings.replays.clear()
        output = model.generate(return_dict_in_generate=True, **arguments)
        assert output.num_rows == num_rows
        assert recordings.replays["_fill_in_rows"] == (2 if most == 20 else 0)
    monkeypatch.setattr(decoding_state, "MAX_RECORDED_SLOTS", 47)
    recordings.replays.clear()
    model.generate(**arguments)
    assert not recordings.replays


def test_a_recording_is_made_after_the_first_calls_with_the_same_shapes(
    recordings: type[SimulatedRecording],
) -> None:
    made = Recordings(nn.Identity(), torch.device("cpu"))

    def multiply(values: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        return values * 2 if other is None else values * other

    for number, length, other, num_replays in [
        *((1.0, 2, None, 0), (2.0, 2, None, 1), (3.0, 3, None, 1), (4.0, 2, None, 2)),
        *((5.0, 3, None, 3), (6.0, 2, 3.0, 3), (7.0, 2, 3.0, 4)),
    ]:
        values = torch.full((length,), number)
        found = made.call(multiply, values, None if other is None else torch.full((length,), other))
        assert torch.equal(found, values * (2 if other is None else other))
        assert recordings.replays.total() == num_replays
    later = Recordings(nn.Identity(), torch.device("cpu"), 3)
    for num_calls in range(1, 6):
        later.call(multiply, torch.ones(1), None)
        assert recordings.replays.total() == 4 + max(num_calls - 3, 0)


@pytest.mark.parametrize("use_cudnn", [False, True])
def test_recorded_functions_use_the_same_attention_in_every_call(
    use_cudnn: bool, recordings: type[SimulatedRecording]
) -> None:
    """A function prepares in its first call what it uses in a recording."""
    made, is_enabled = Recordings(nn.Identity(), torch.device("cpu")), []
    made.use_cudnn = use_cudnn

    def note(values: torch.Tensor) -> torch.Tensor:
        with without_cudnn_attention(torch.device("meta")):
            is_enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return values + 1

    made.call(note, torch.zeros(1))
    assert is_enabled == [use_cudnn]
    made.call(note, torch.zeros(1))
    assert len(is_enabled) > 1
    assert all(value == use_cudnn for value in is_enabled)
    note(torch.zeros(1))
    assert not is_enabled[-1]


def test_other_threads_do_not_change_the_attention_of_a_recording(recordings: type[SimulatedRecording]) -> None:
    made, threads = Recordings(nn.Identity(), torch.device("cpu")), []

    def turn_off() -> None:
        with without_cudnn_attention(torch.device("meta")):
            pass

    def run(values: torch.Tensor) -> torch.Tensor:
        threads.append(Thread(target=turn_off))
        threads[-1].start()
        threads[-1].join(timeout=0.2)
        assert threads[-1].is_alive() == (get_proxy_mode() is not None)  # waits for the end of the recording
        return values + 1

    for _ in range(2):
        made.call(run, torch.zeros(1))
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_compiled_models_are_recorded_unless_they_record_themselves() -> None:
    model = random_model().model
    assert not records_itself(model)
    model.layers[0].compile()
    model.compile(backend="eager")
    assert not records_itself(model)
    model.layers[0].compile(mode="reduce-overhead")
    assert records_itself(model)


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError()])
def test_after_a_failed_recording_passes_are_not_padded(
    error: RuntimeError, recordings: type[SimulatedRecording], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Two passes are padded: the first with its shape, and the one that could not be recorded.

    Later generations try again only if the memory was not sufficient.
    """
    attempts = []

    def fail(*arguments: Any) -> None:
        attempts.append(arguments)
        raise error

    model, arguments = random_model(), {"order": "confidence", "return_dict_in_generate": True}
    with monkeypatch.context() as patch:
        patch.setattr(decoding_state, "MIN_PASSES_TO_RECORD", 100)
        expected = model.generate(generator=seeded(), **arguments)
    monkeypatch.setattr(cuda_graphs, "Recording", fail)
    found = model.generate(generator=seeded(), **arguments)
    assert torch.equal(found.sequences, expected.sequences)
    assert (len(attempts), found.num_rows, expected.num_rows) == (1, 134, 89)
    model.generate(**arguments)
    is_out_of_memory = isinstance(error, torch.OutOfMemoryError)
    assert len(attempts) == 1 + is_out_of_memory
    if not is_out_of_memory:
        assert model.generate(generator=seeded(), **arguments).num_rows == expected.num_rows
    assert not recordings.replays


def test_only_plain_models_on_a_gpu_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gpu = random_model().model, SimpleNamespace(type="cuda")
    assert not can_record(model, torch.device("cpu"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(model, "parameters", lambda: [])  # the others are on the CPU
    assert can_record(model, gpu)
    model(**{name: torch.zeros(1, 1, dtype=torch.long) for name in ROWS}, output_hidden_states=True)
    assert any(layer._forward_hooks for layer in model.layers)  # Transformers' own
    assert can_record(model, gpu)
    hook = model.layers[0].register_forward_hook(lambda *_: None)
    assert not can_record(model, gpu)
    hook.remove()
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not can_record(model, gpu)
    hook.remove()
    monkeypatch.setattr(model.config, "quantization_config", {"quant_method": "gptq"}, raising=False)
    assert not can_record(model, gpu)
    monkeypatch.setattr(model.config, "quantization_config", None)
    monkeypatch.setattr(model, "parameters", lambda: [SimpleNamespace(device=gpu)])
    assert not can_record(model, gpu)
