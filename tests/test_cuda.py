# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The same results on a GPU as on the CPU. `test_accelerator.py` tests on the CPU what needs no real GPU."""

import copy
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from eval.benchmarks import speed
from eval.benchmarks.contenders import CONTENDERS
from modeling_aogpt import decoding_state
from modeling_aogpt.cuda_graphs import Recording
from modeling_aogpt.generation import AnyOrderGenerationOutput
from tests.references import random_encoder, random_model, seeded
from training.objectives import AnyOrderObjective

DEVICE = torch.device("cuda", 0)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WIDE = {"hidden_size": 64, "num_attention_heads": 4, "initializer_range": 0.1}  # fast kernels need wide heads
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "decoder": lambda: random_model(**WIDE),
    "rotary": lambda: random_model(**WIDE, position_encoding="rotary", num_key_value_heads=2),
    "encoder": lambda: random_encoder(**WIDE),
    "sedd": lambda: random_encoder(**WIDE, target_injection="sigma", position_encoding="rotary"),
}
DECODING: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "left to right": {"order": "left_to_right"},
    "Bernoulli": {"num_steps": 8},
    "confidence": {"order": "confidence"},
    "entropy bound": {"unmasking": "entropy_bound", "entropy_bound": 1.0},
    "refined": {"refine_rounds": 2, "refine_length": 2, "num_steps": 3},
    "truncated": {"top_k": 5, "top_p": 0.9, "temperature": 0.7},
}
SPECULATION: dict[str, dict[str, Any]] = {
    "speculative": {"strategy": "speculative"},
    "prompt lookup": {"strategy": "speculative", "draft": "prompt_lookup"},
}
IDS = torch.randint(0, 11, (3, 12), generator=seeded(1))
PARTLY_MASKED = IDS.masked_fill(IDS % 2 == 0, 11)
ATTENTION_MASK = torch.ones(3, 12, dtype=torch.long)
ATTENTION_MASK[1, 8:] = ATTENTION_MASK[2, :3] = 0
# Differences of log-probabilities. Results in bfloat16 are compared with those of the same weights in float32. Rotary
# cosines and sines are always float32.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 0.2}


def pair(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model on the CPU, in at least float32, and a copy in `dtype` on the GPU."""
    model = MODELS[name]().to(dtype)
    moved = copy.deepcopy(model).to(DEVICE)
    return model.to(torch.promote_types(dtype, torch.float32)), moved


def generate(model: PreTrainedModel, seed: int = 0, **arguments: Any) -> AnyOrderGenerationOutput:
    """Generate with a generator on the CPU, which draws the same numbers for every device."""
    return model.generate(generator=seeded(seed), return_dict_in_generate=True, **arguments)


def check_log_probabilities(output: AnyOrderGenerationOutput, model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Check the log-probabilities of tokens generated one at a time against a full forward pass on the CPU."""
    scored = model.log_likelihood(output.sequences.cpu(), orders=output.orders.cpu()).token_log_likelihood
    torch.testing.assert_close(output.token_logprobs.cpu(), scored, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
def test_likelihoods_equal_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    expected, found = (
        model.log_likelihood(
            IDS.to(model.device), orders="random", attention_mask=ATTENTION_MASK.to(model.device), generator=seeded()
        ).token_log_likelihood
        for model in pair(name, dtype)
    )
    assert found.device == DEVICE
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Record all generations, however short, and return the number of replays of each function."""
    replays, names, make, replay = Counter(), {}, Recording.__init__, Recording.replay

    def note_name(self: Recording, function: Callable[..., Any], *arguments: Any) -> None:
        make(self, function, *arguments)
        names[self] = function.func.__name__

    def count(self: Recording, *arguments: Any) -> Any:
        replays[names[self]] += 1
        return replay(self, *arguments)

    for limit in ("MIN_PASSES_TO_RECORD", "MIN_PASSES_FOR_CUDNN"):
        monkeypatch.setattr(decoding_state, limit, 1)
    monkeypatch.setattr(decoding_state.EncoderDecodingState, "num_calls_before_recording", 1)
    monkeypatch.setattr(Recording, "__init__", note_name)
    monkeypatch.setattr(Recording, "replay", count)
    return replays


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in MODELS for kind in DECODING]
    + [(name, kind) for name in ("decoder", "rotary") for kind in SPECULATION],
)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_samples_equal_those_of_the_cpu(
    name: str, kind: str, is_recorded: bool, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    replays = request.getfixturevalue("replays") if is_recorded else Counter()
    arguments = (DECODING | SPECULATION)[kind]
    expected, found = (
        generate(
            model, inputs=PARTLY_MASKED.to(model.device), attention_mask=ATTENTION_MASK.to(model.device), **arguments
        )
        for model in pair(name, dtype)
    )
    assert found.sequences.device == DEVICE
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    torch.testing.assert_close(found.token_logprobs.cpu(), expected.token_logprobs, rtol=0, atol=TOLERANCES[dtype])
    assert bool(replays) == is_recorded


def test_garbage_does_not_spoil_recordings(replays: Counter[str]) -> None:
    """Freeing a CUDA graph while another one is recorded would make the recording fail."""
    _, moved = pair("decoder", torch.float32)
    forward, graph = moved.model.norm.forward, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=DEVICE)
    kept = [graph]
    kept.append(kept)  # only the garbage collector can free it
    del graph

    class Littering(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            if torch.cuda.is_current_stream_capturing():
                kept = [[] for _ in range(10_000)]  # starts the collector, if it is enabled
            return forward(states)

    moved.model.norm = Littering()
    generate(moved)
    assert replays["_fill_in_rows"] > 0


def test_recorded_draws_equal_those_of_the_cpu(replays: Counter[str]) -> None:
    """Without inputs, all steps draw the same number of tokens."""
    for name in ("decoder", "encoder"):
        model, moved = pair(name, torch.float32)
        arguments = {"num_return_sequences": 3, "num_steps": 4, "unmasking": "fixed_count"}
        assert torch.equal(generate(moved, **arguments).sequences.cpu(), generate(model, **arguments).sequences)
    assert set(replays) == {"_draw", "_run", "_fill_in_rows"}


def test_passes_that_wait_for_the_gpu_are_not_recorded(replays: Counter[str]) -> None:
    model, moved = pair("decoder", torch.float32)
    forward, stream = moved.model.norm.forward, torch.cuda.current_stream()
    expected, recorded = generate(model), generate(moved)
    assert torch.equal(recorded.sequences.cpu(), expected.sequences)
    num_replays = replays["_fill_in_rows"]
    assert num_replays > 0

    class Waiting(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            assert states.sum().item() < math.inf
            return forward(states)

    moved.model.norm = Waiting()
    found = generate(moved)
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    assert replays["_fill_in_rows"] == num_replays
    assert torch.cuda.current_stream() == stream
    found = generate(moved)
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    assert found.num_rows == expected.num_rows


@pytest.mark.parametrize("name", ["decoder", "rotary"])
@pytest.mark.parametrize("kind", ["one at a time", "left to right", "speculative"])
def test_bfloat16_samples_have_the_log_probabilities_of_a_full_pass(
    name: str, kind: str, replays: Counter[str]
) -> None:
    model, moved = pair(name, torch.bfloat16)
    output = generate(moved, num_return_sequences=3, **(DECODING | SPECULATION)[kind])
    check_log_probabilities(output, model, torch.bfloat16)
    assert replays


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_passes_of_compiled_models_do_not_change_samples(dtype: torch.dtype, replays: Counter[str]) -> None:
    torch._dynamo.reset()
    model, moved = pair("decoder", dtype)
    plain = copy.deepcopy(moved)
    moved.model.compile()
    for seed in range(2):
        for arguments in ({"num_steps": 4, "unmasking": "fixed_count"}, {}):
            expected = generate(plain, seed, num_return_sequences=2, **arguments)
            num_replays = replays["_run_rows"]
            found = generate(moved, seed, num_return_sequences=2, **arguments)
            assert replays["_run_rows"] > num_replays
            if dtype == torch.float32:
                assert torch.equal(found.sequences, expected.sequences)
        check_log_probabilities(found, model, dtype)
        with torch.no_grad():
            for weight in (*model.parameters(), *plain.parameters(), *moved.parameters()):
                weight.mul_(0.5)  # without rounding


@pytest.mark.parametrize("arguments", [{}, {"order": "confidence"}, {"order": "left_to_right"}])
@pytest.mark.parametrize("name", ["decoder", "encoder"])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_steps_do_not_wait_for_the_gpu(
    name: str,
    arguments: dict[str, Any],
    is_recorded: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU waits while a recording is made, so both lengths need the same number of recordings."""
    _, model = pair(name, torch.float32)
    replays = request.getfixturevalue("replays") if is_recorded else Counter()
    if not is_recorded:
        monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_RECORD", 100)

    def count_waits(length: int) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                model.generate(max_length=length, num_return_sequences=2, **arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        # `set_sync_debug_mode` itself warns that it may miss some synchronizing operations.
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    assert count_waits(12) == count_waits(10) > 0
    assert bool(replays) == is_recorded


def test_generators_of_the_gpu_are_reproducible() -> None:
    _, model = pair("decoder", torch.float32)
    first, second, other = (
        model.generate(num_return_sequences=8, num_steps=4, generator=torch.Generator(DEVICE).manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_equal_those_of_the_cpu(dtype: torch.dtype, is_compiled: bool) -> None:
    """With float32 weights, under autocast for bfloat16."""
    torch._dynamo.reset()
    orders, losses, gradients = torch.rand(3, 12, generator=seeded()).argsort(dim=1), [], []
    for model in pair("decoder", torch.float32):
        objective = AnyOrderObjective(model.train())
        step = torch.compile(objective) if is_compiled and model.device == DEVICE else objective
        with torch.autocast(DEVICE.type, dtype, enabled=dtype == torch.bfloat16 and model.device == DEVICE):
            loss = step(IDS.to(model.device), orders.to(model.device))
        loss.backward()
        losses.append(loss.detach().cpu())
        gradients.append(torch.cat([weight.grad.flatten().cpu() for weight in model.parameters()]))
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)
    assert (gradients[1] - gradients[0]).norm() < tolerance * gradients[0].norm()


def test_speed_is_measured(tmp_path: Path) -> None:
    """Measure all contenders, and then compiled contenders."""
    torch._dynamo.reset()
    options = ["--size", "tiny", "--steps", "2", "16", "--dtype", "bfloat16", "--output_dir", str(tmp_path)]
    speed.main([*options, "--contenders", "all", "--batch_size", "1", "2"])
    report = json.loads((tmp_path / "speed.json").read_text())
    assert all(point["seconds"] > 0 for point in report["points"])
    assert {point["contender"] for point in report["points"]} == set(CONTENDERS)
    speed.main([*options, "--contenders", "encoder", "llama", "--repeats", "1", "--compile"])
    report = json.loads((tmp_path / "speed.json").read_text())
    assert all(point["seconds"] > 0 for point in report["points"])
