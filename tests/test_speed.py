# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of generation. No test asserts a time."""

import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel

from common.hardware import versions
from eval.benchmarks import resources, speed
from eval.benchmarks.contenders import (
    CONTENDERS,
    DECODERS,
    ENCODERS,
    Contender,
    load_causal_lm,
    make_contenders,
    make_encoder,
    sample_causal_lm,
    sample_encoder,
)
from eval.benchmarks.resources import (
    Machine,
    best_time,
    count_work,
    measure_decoder,
    measure_encoder,
    measure_machine,
    measure_peak,
)
from eval.benchmarks.speed import SpeedArguments, main, measure, time_contenders
from eval.benchmarks.speed_report import FLOOR, make_panel, write_report
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderForMaskedLM, decoding_state
from modeling_aogpt.cpu_inference import HAS_ONEDNN
from tests.references import random_model

CPU = torch.device("cpu")
TINY = {"size": "tiny", "length": 16, "steps": [2, 16], "repeats": 1, "device": "cpu", "threads": 1}


def decode(contender: Contender) -> torch.LongTensor:
    torch.manual_seed(0)
    return contender.sample(3, 12, 4)


@pytest.mark.parametrize("name", ["no-cache", "no-lemma", "plain-products", "sorted-vocabulary"])
def test_ablations_do_not_change_samples(name: str) -> None:
    model = random_model()
    if name == "no-lemma":  # draws more tokens than it keeps
        model.generation_config.do_sample = False
    plain = decode(DECODERS["decoder"](model))
    assert torch.equal(decode(DECODERS[name](model)), plain)
    assert torch.equal(decode(DECODERS["decoder"](model)), plain)  # the model is restored


@pytest.mark.parametrize(
    ("name", "rows", "queries"),
    [
        ("decoder", [3, 5, 5, 5], [3, 3, 3, 3]),
        ("no-cache", [3, 6, 9, 12], [3, 3, 3, 3]),
        ("no-lemma", [12, 11, 8, 5], [12, 9, 6, 3]),
        ("confidence-blocks", [12, 12, 9, 6], [12, 9, 6, 3]),
        ("one-by-one", [1] * 12, [1] * 12),
        ("prompt-lookup", None, None),
        ("speculative", None, None),
    ],
)
def test_rows_and_queries_of_each_pass(name: str, rows: list[int] | None, queries: list[int] | None) -> None:
    """Count, for each of 12 tokens in 4 steps, the rows of a pass and the predictions for which tokens are drawn."""
    model = random_model()
    seen: dict[str, list[int]] = {"rows": [], "queries": []}
    model.model.layers[0].register_forward_hook(lambda *values: seen["rows"].append(values[1][0].shape[1]))
    model.lm_head.register_forward_hook(lambda *values: seen["queries"].append(values[1][0].shape[0] // 3))
    decode(DECODERS[name](model))
    if rows is None:
        assert len(seen["rows"]) < 24
    else:
        assert (seen["rows"], seen["queries"]) == (rows, queries)


@pytest.mark.skipif(not HAS_ONEDNN, reason="PyTorch was built without oneDNN")
@pytest.mark.parametrize("name", ["plain-products", "no-cache"])
def test_plain_products_do_not_use_onednn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PREPARE", 1)
    contender = DECODERS[name](random_model().float())
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        decode(contender)
    names = {event.key for event in profiler.key_averages()}
    onednn_names = {"mkldnn::_linear_pointwise", "mkldnn::_reorder_linear_weight"}
    assert names & onednn_names == (set() if name == "plain-products" else onednn_names)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_have_the_sizes_of_the_decoder(name: str) -> None:
    config = random_model().config
    encoder = make_encoder(name, config).eval()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_valid_tokens")
    assert all(getattr(encoder.config, size) == getattr(config, size) for size in sizes)
    noise_levels, queries = [], []
    encoder.model.register_forward_pre_hook(
        lambda module, arguments, options: noise_levels.append(options["sigma"]), with_kwargs=True
    )
    encoder.lm_head.register_forward_hook(lambda *values: queries.append(values[1][0].shape[0] // 3))
    contender = sample_encoder(encoder)
    assert contender.is_linear
    decode(contender)
    if name == "sedd":
        assert all(level is not None for level in noise_levels)
        assert queries[0] == 12
    else:
        assert noise_levels == [None] * 4
        assert queries == [3] * 4


def test_models_have_the_dtype_of_the_decoder_and_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, dtypes = [], []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(type(module).__name__))
    found = make_contenders(["decoder", "encoder", "llama"], random_model().bfloat16(), 9, compiles=True)
    assert compiled == ["MDMEncoderModel"]  # the caller compiles the decoder
    for name in ("decoder", "encoder", "llama"):
        with torch.nn.modules.module.register_module_forward_hook(
            lambda module, inputs, output: dtypes.append(getattr(output, "dtype", torch.bfloat16))
        ):
            found[name].sample(1, 9, 2)
    assert set(dtypes) == {torch.bfloat16}


def test_samples_are_checked() -> None:
    def make(result: Any) -> Contender:
        return Contender(lambda batch_size, length, num_steps: result, "mine", num_ids=5)

    assert make(torch.tensor([[0, 4]])).sample(1, 2, 1).tolist() == [[0, 4]]
    for result, message in (
        (None, "type NoneType"),
        (torch.zeros(1, 3), r"shape \(1, 3\)"),
        (torch.tensor([[0, 5]]), "ids from 0 to 5"),
        (torch.tensor([[-1, 1]]), "ids from -1 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(result).sample(1, 2, 1)


def test_benchmarks_of_speed_need_no_data_sets() -> None:
    """Machines with a GPU often have only PyTorch, Transformers, Accelerate and matplotlib."""
    absent = dict.fromkeys(("datasets", "evaluate", "tensorboard"))
    names = ("speed", "training_speed")
    modules = ", ".join(f"eval.benchmarks.{name}" for name in names) + ", tests.conftest, tests.test_cuda"
    code = f"import sys; sys.modules |= {absent}; import {modules}"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)


def save_gpt2(folder: Path, length: int) -> GPT2LMHeadModel:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": length}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=3, eos_token_id=1))
    model.save_pretrained(folder)
    return model


def test_causal_lms_generate_the_given_length(tmp_path: Path) -> None:
    save_gpt2(tmp_path, 20)
    decoder = random_model().float()
    found = make_contenders([str(tmp_path), "llama"], decoder, 9)
    names = [f"{name}{way}" for name in (tmp_path, "llama") for way in ("", " static-cache", " prompt-lookup")]
    assert list(found) == names
    for name, contender in found.items():
        assert not contender.takes_steps
        assert contender.max_batch_size == (1 if "lookup" in name else None)
        assert contender.sample(1, 9, 9).shape == (1, 9)
    assert found["llama"].sample(3, 9, 9).shape == (3, 9)
    with pytest.raises(ValueError, match=r"`length` must be at most 20 for .*, but is 21"):
        load_causal_lm(str(tmp_path), decoder.config, 21)


def test_prompt_lookup_is_left_out_for_short_models(tmp_path: Path) -> None:
    assert "x prompt-lookup" not in sample_causal_lm("x", save_gpt2(tmp_path, 9), 9)


def test_causal_lms_start_with_the_start_token_and_do_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = save_gpt2(tmp_path, 20), []

    def generate(start: torch.LongTensor, **settings: Any) -> torch.LongTensor:
        calls.append(settings | {"start": start.tolist()})
        return start.repeat(1, 6)

    monkeypatch.setattr(model, "generate", generate)
    for contender in sample_causal_lm("x", model, 5, compiles=True).values():
        contender.sample(1, 5, 5)
    assert model.generation_config.eos_token_id is None
    assert [call["start"] for call in calls] == [[[3]]] * 3
    assert all(call["do_sample"] and call["top_k"] == 0 for call in calls)
    assert [call.get("cache_implementation") for call in calls] == [None, "static", None]
    assert calls[1]["compile_config"]._compile_all_devices
    assert calls[2]["prompt_lookup_num_tokens"] == 10


def test_floor_counts_weights_and_rows() -> None:
    """With the sizes of GPT-2: 85 million weights in blocks and 38.6 million in the head."""
    work = count_work(AOGPTConfig(), 1, 1024, 1024, torch.float32)
    weights, cache = 12 * 12 * 768**2 + 768 * 50304, 2 * 12 * 768 * 512
    assert work.bytes == 1024 * 4 * (weights + cache)
    rows = 1024 * (12 * (12 * 768**2 + 768 * 1024) + 768 * 50304)
    assert work.flop == 2 * rows
    assert work.seconds(Machine(work.flop, work.bytes / 3)) == pytest.approx(3)
    gated = count_work(AOGPTConfig(gated_mlp=True), 1, 1024, 1024, torch.float32)
    assert gated.bytes - work.bytes == 1024 * 4 * 12 * 4 * 768**2  # a third matrix in each MLP
    few = count_work(AOGPTConfig(), 4, 1024, 32, torch.float32)
    entering = 31 * 31 * 4
    in_last_layer = 10 * 768**2 + 768 * 1024  # without queries, attention, projection and MLP
    assert few.flop == 2 * (4 * rows + entering * (12 * (12 * 768**2 + 768 * 1024) - in_last_layer))
    # Six heads of 96 (width 576) that share two heads of keys and values (width 192).
    grouped = AOGPTConfig(num_attention_heads=6, num_key_value_heads=2, head_dim=96)
    work = count_work(grouped, 1, 1024, 1024, torch.float32)
    weights = 12 * (768 * (2 * 576 + 2 * 192) + 8 * 768**2) + 768 * 50304
    assert work.bytes == 1024 * 4 * (weights + 2 * 12 * 192 * 512)
    assert work.flop == 2 * 1024 * (weights + 12 * 576 * 1024)


@pytest.mark.parametrize("device", ["cpu", "meta"])  # an accelerator
def test_rates_are_operations_and_bytes_per_second(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Count the operations of calls that take one second each. An accelerator reads all weights in one call.

    Packed weights are measured after the others. Their calls take half a second.
    """
    counted, durations = {"flop": 0.0, "bytes": 0.0, "reads": 0}, iter([1.0, 0.5, 1.0, 0.5])

    def count(layer: torch.nn.Linear, arguments: tuple, output: torch.Tensor) -> None:
        if len(arguments[0]) == 1:
            counted["bytes"] += layer.weight.nbytes
            counted["reads"] += 1
        else:
            counted["flop"] += 2 * len(arguments[0]) * layer.weight.numel()

    def run_and_return_seconds(function: Callable[[], object], device: torch.device, num_calls: int) -> float:
        function()
        return next(durations)

    packed = []
    monkeypatch.setattr(resources, "best_time", run_and_return_seconds)
    monkeypatch.setattr(resources, "pack_weights", packed.append)
    with torch.nn.modules.module.register_module_forward_hook(count):
        machine = measure_machine(AOGPTConfig(**speed.SIZES["tiny"]), torch.device(device), torch.bfloat16)
    assert machine == Machine(counted["flop"], counted["bytes"])  # each is counted twice, and divided by 0.5 seconds
    assert len(packed) == 2
    assert counted["bytes"] == 2 * 2 * 2 * 3 * 32 * 128
    assert counted["reads"] == 2 * {"cpu": 2 * 3, "meta": 1}[device]


def test_best_time_is_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([1.0, 1.0, 2.0, 8.0, 0.5, 1.5, 2.0, 2.0])  # of calls; a round has four
    clock = [0.0]
    monkeypatch.setattr(resources, "time", SimpleNamespace(perf_counter=lambda: sum(clock)))
    found = best_time(lambda: clock.append(next(durations)), torch.device("cpu"), num_calls=4, repeats=2)
    assert found == 6.0 / 4
    assert next(durations, None) is None


def fake(name: str, calls: list[tuple], **attributes: Any) -> Contender:
    """Return a contender that records its calls."""

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        calls.append((name, batch_size, length, num_steps))
        return torch.zeros(batch_size, length, dtype=torch.long)

    return Contender(generate, name, num_ids=1, **attributes)


def fake_contenders(calls: list[tuple]) -> dict[str, Contender]:
    contenders = {
        "decoder": fake("decoder", calls),
        "one-by-one": fake("one-by-one", calls, takes_steps=False),
        "encoder": fake("encoder", calls, is_linear=True),
        "lookup": fake("lookup", calls, takes_steps=False, max_batch_size=1),
    }
    return contenders


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_warm_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full generation warms up an accelerator, and 8 tokens warm up a CPU. All jobs take turns in each round."""
    monkeypatch.setattr(speed, "synchronize", lambda device: None)
    calls: list[tuple] = []
    arguments = SpeedArguments(**TINY | {"steps": [4, 99], "device": device, "repeats": 2})
    rounds = list(time_contenders(fake_contenders(calls), arguments, 2, 16, torch.device(device)))
    assert [len(point["all_seconds"]) for point in rounds[0] + rounds[1]] == [1] * 5 + [2] * 5
    jobs = [("decoder", 2, 16, 4), ("encoder", 2, 16, 4), ("decoder", 2, 16, 16)]
    jobs += [("one-by-one", 2, 16, 16), ("encoder", 2, 16, 16)]  # no lookup at batch size 2
    warm_up = jobs if device == "cuda" else [(name, 2, 8, 1) for name, *_ in jobs]
    # The last of the first calls estimates the time of a step.
    assert calls == [*[("encoder", 2, 16, 1)] * (3 if device == "cuda" else 1), *warm_up, *jobs, *jobs]
    if device == "cuda":  # the second generation records CUDA graphs
        calls.clear()
        arguments.compile = True
        list(time_contenders(fake_contenders(calls), arguments, 2, 16, torch.device(device)))
        assert calls == [*[("encoder", 2, 16, 1)] * 3, *jobs, *jobs, *jobs, *jobs]


def test_extrapolated_rows_are_within_a_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of no-lemma is not exactly linear in the number of steps. Count its rows instead of its seconds."""
    config = AOGPTConfig(**speed.SIZES["tiny"])
    model, rows = AOGPTForAnyOrderLM(config).eval(), []
    model.model.layers[0].register_forward_hook(lambda *values: rows.append(values[1][0].shape[1]))
    counted = {}
    for steps in (*speed.FEW_STEPS, 64):
        rows.clear()
        DECODERS["no-lemma"](model).sample(1, 64, steps)
        counted["no-lemma", steps] = [sum(rows)]
    exact = counted.pop(("no-lemma", 64))[0]
    (found,), fastest, is_computed = speed._times(counted, "no-lemma", 64, speed.FEW_STEPS)
    assert is_computed
    assert fastest == found
    assert exact <= found < 1.01 * exact
    monkeypatch.setattr(speed, "time_generation", lambda *_: 99.0)
    chosen = [
        speed._choose_steps(DECODERS["no-lemma"](model), steps, 100.0, 1, 64, CPU) for steps in ([16, 32], [16, 64])
    ]
    assert chosen == [[16, 32], [8, 16, 32]]  # no more steps than needed
    on_gpu = speed._choose_steps(DECODERS["no-lemma"](model), [16, 256], 100.0, 1, 1024, torch.device("cuda"))
    assert on_gpu == [16, 64, 128]  # all of at least 32 passes, which are recorded


def test_a_disturbance_never_makes_a_computed_time_shorter() -> None:
    """A step takes 0.1 s. The first round was slow with few steps, and the second with more steps."""
    times, fastest, is_computed = speed._times({("a", 8): [2.0, 0.8], ("a", 32): [3.2, 9.0]}, "a", 128, (8, 32))
    assert is_computed
    assert min(times) == pytest.approx(8.0)
    assert fastest == pytest.approx(12.8)


@pytest.mark.parametrize("name", ["no-lemma", "no-cache"])
def test_weights_are_packed_from_the_first_pass_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the time would not be a linear function of the number of steps, and could not be extrapolated."""
    model = AOGPTForAnyOrderLM(AOGPTConfig(**speed.SIZES["tiny"])).eval()
    passes: list[int] = []
    events: list[int] = []  # passes before the weights were packed
    model.model.register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(decoding_state, "gains_from_packing", lambda dtype, rows: True)
    monkeypatch.setattr(decoding_state, "pack_weights", lambda model: events.append(len(passes)))
    contender = DECODERS[name](model)
    contender.sample(1, 16, 4)
    assert events == [0]


def test_contenders_without_memory_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder fails in every generation, and one-by-one in the second round."""
    counts: dict[str, int] = {}

    def generate(contender: Contender, batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        counts[contender.remark] = counts.get(contender.remark, 0) + 1
        if contender.remark == "encoder" or (contender.remark == "one-by-one" and counts["one-by-one"] == 3):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return torch.zeros(batch_size, length, dtype=torch.long)

    monkeypatch.setattr(Contender, "sample", generate)
    monkeypatch.setattr(speed, "_make_contenders", lambda *_: fake_contenders([]))
    folder = tmp_path / "report"
    options = "--size tiny --length 16 --steps 4 --contenders none --device cpu --threads 1 --output_dir"
    main([*options.split(), str(folder)])
    assert counts["encoder"] == 1
    points = {point["contender"]: point for point in json.loads((folder / "speed.json").read_text())["points"]}
    assert points["encoder"]["seconds"] is points["one-by-one"]["seconds"] is points["lookup"]["ratio"] is None
    assert points["decoder"]["ratio"] == 1.0
    written = (folder / "speed.md").read_text()
    assert "| 1 | 4 | encoder | out of memory |  |  |" in written
    assert "| 1 | own | one-by-one | out of memory |  |  |" in written


def test_times_of_many_steps_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the encoder takes 10 s and its draws 3 s. The decoder takes 1 s per step, and one-by-one 8 s."""
    slowdowns = iter([1.0, 1.0, 1.5])  # of the rounds; the first is also that of the estimate

    def measure_time(contender: Contender, *arguments: Any) -> float:
        num_steps = arguments[2]
        if contender.is_linear:
            return slowdown * (3.0 + 10 * num_steps)
        if contender.takes_steps:
            return slowdown**2 * num_steps  # slower than the others in the last round
        return slowdown * 8.0

    monkeypatch.setattr(speed, "time_generation", measure_time)
    monkeypatch.setattr(speed, "FEW_STEPS", (1, 4))
    slowdown = next(slowdowns)
    arguments = SpeedArguments(**TINY | {"steps": [2, 8, 16], "repeats": 3, "limit_seconds": 100.0})
    for found in time_contenders(fake_contenders([]), arguments, 1, 16, CPU):
        points = {(point["contender"], point["num_steps"]): point for point in found}
        slowdown = next(slowdowns, 1.0)
    assert points["encoder", 2]["seconds"] == 23.0
    assert not points["encoder", 2]["is_computed"]
    assert points["encoder", 8]["is_computed"]
    assert points["encoder", 16]["seconds"] == pytest.approx(163.0)
    assert points["encoder", 16]["all_seconds"] == pytest.approx([163.0, 163.0, 1.5 * 163.0])
    assert points["encoder", 16]["ratio"] == pytest.approx(163 / 16)
    assert points["lookup", None]["ratio"] == 1.0
    assert points["one-by-one", None]["seconds"] == 8.0


def test_contenders_are_chosen_by_name() -> None:
    both = [SpeedArguments(contenders=["all"], device=device).contenders for device in ("cpu", "cuda")]
    assert {*both[0], *both[1]} == set(CONTENDERS)
    assert set(both[0]) ^ set(both[1]) == {"plain-products", "no-graphs"}
    assert SpeedArguments(contenders=["none"]).contenders == ["decoder", "one-by-one"]
    assert SpeedArguments(contenders=["sedd", "decoder"]).contenders == ["decoder", "one-by-one", "sedd"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floor_is_measured_in_the_given_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = SpeedArguments(**TINY | {"steps": [2], "dtype": dtype, "contenders": ["none"]})
    dtypes = []

    def record(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
        dtypes.append(dtype)
        return Machine(1.0, 1.0)

    monkeypatch.setattr(speed, "measure_machine", record)
    assert measure(arguments, "command")["dtype"] == dtype
    assert dtypes == [getattr(torch, dtype)]


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def make(config, device, dtype):\n"
        "    calls = []\n"
        "    def generate(batch_size, length, num_steps):\n"
        "        calls.append((batch_size, length, num_steps))\n"
        "        print('called with', *calls[-1])\n"
        "        return torch.zeros(batch_size, length, dtype=int)\n"
        "    return generate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = "--size tiny --length 16 --steps 16 2 --batch_size 1 2 --repeats 2 --threads 1 --device cpu"
    arguments += " --contenders no-cache encoder"
    folder = tmp_path / "report"
    main([*arguments.split(), "--compare", "mine:make", "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    found = {(p["contender"], p["batch_size"], p["num_steps"]) for p in report["points"]}
    names = ("decoder", "no-cache", "encoder", "mine:make")
    expected = {(name, batch, steps) for name in names for batch in (1, 2) for steps in (2, 16)}
    assert found == expected | {("one-by-one", batch, None) for batch in (1, 2)}
    assert list(report["contenders"]) == ["decoder", "one-by-one", *names[1:]]
    for point in report["points"]:
        assert len(point["all_seconds"]) == 2
        assert point["seconds"] == min(point["all_seconds"]) > 0
        assert not point["is_computed"]
        if point["contender"] in ("decoder", "one-by-one"):
            assert point["ratio"] == 1.0
    assert capsys.readouterr().out.count("called with 2 16 16") == 2
    assert report["hardware"]["threads"] == 1
    assert report["versions"] == versions()
    assert report["command"].startswith("python eval/benchmarks/speed.py --size tiny")
    assert (folder / "speed.png").stat().st_size > 10_000
    written = (folder / "speed.md").read_text()
    assert "| 2 | 16 | encoder | " in written
    assert "16 tokens per sequence, float32, random weights." in written
    assert f"| torch | {versions()['torch']} |" in written


def test_a_contender_without_steps_is_a_horizontal_line() -> None:
    common = {"batch_size": 1, "floor_seconds": 0.5}
    rows = [("decoder", 32, 1.0), ("mine", 32, None), ("decoder", 64, 2.0), ("gpt2", None, 3.1)]
    points = [dict(zip(("contender", "num_steps", "seconds"), row, strict=True)) | common for row in rows]
    points.append(points[0] | {"batch_size": 2})
    assert make_panel(points, 1, 64).lines == {
        "decoder": [(32, 1.0), (64, 2.0)],
        "gpt2": [(32, 3.1), (64, 3.1)],
        FLOOR: [(32, 0.5), (64, 0.5)],
    }


def test_interrupted_run_keeps_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import torch\n"
        "def make(config, device, dtype):\n"
        "    def generate(batch_size, length, num_steps):\n"
        "        if (batch_size, num_steps) == (2, 2):\n"
        "            raise RuntimeError\n"
        "        return torch.zeros(batch_size, length, dtype=int)\n"
        "    return generate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = (
        "--size tiny --length 16 --steps 2 --batch_size 1 2 --repeats 1 --threads 1 --device cpu --contenders none"
    )
    folder = tmp_path / "report"
    with pytest.raises(RuntimeError):
        main([*arguments.split(), "--compare", "interrupted:make", "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    assert [point["batch_size"] for point in report["points"]] == [1] * 3
    assert "| 1 | 2 | interrupted:make |" in (folder / "speed.md").read_text()


def test_memory_grows_with_the_length() -> None:
    config = AOGPTConfig(**speed.SIZES["tiny"])
    short, long = (measure_decoder(config.to_dict(), length, "cpu", torch.float32, 1) for length in (32, 64))
    assert long["cache_bytes"] == 2 * short["cache_bytes"] == 2 * 2 * 2 * 32 * 32 * 4
    assert long["modulation_bytes"] == 2 * short["modulation_bytes"] == 2 * 32 * 4 * 32 * (2 * 6 + 2)


def test_encoder_memory_is_that_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 64 positions are computed once, and a 32nd of them is masked."""
    passes: list[torch.LongTensor] = []

    def make(name: str, config: AOGPTConfig) -> MDMEncoderForMaskedLM:
        model = make_encoder(name, config)
        model.model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0].clone()))
        model.model.register_forward_pre_hook(lambda module, arguments: use_memory())
        return model

    monkeypatch.setattr(resources, "make_encoder", make)
    config = AOGPTConfig(**speed.SIZES["tiny"])
    assert measure_encoder(config.to_dict(), 64, "cpu", torch.float32, 1)["encoder_peak_bytes"] >= 2**27
    assert passes[-1].shape == (1, 64)
    assert (passes[-1] == config.mask_token_id).sum() == 2
    assert len(passes) == 2  # with the warm-up


def use_memory() -> None:
    """Use 128 MiB that no allocator has cached, for long enough to be measured."""
    with mmap.mmap(-1, 2**27) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        time.sleep(0.05)


def test_peak_memory_is_that_of_a_call() -> None:
    assert 2**27 <= measure_peak(use_memory, CPU) < 2**28


def test_memory_is_measured_in_another_process(tmp_path: Path) -> None:
    report = measure(SpeedArguments(**TINY | {"steps": [1]}, contenders=["none"], memory_lengths=[32]), "command")
    write_report(report, tmp_path)
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    assert report["memory"][0]["length"] == 32
    assert report["memory"][0]["cache_bytes"] == 2 * 2 * 32 * 32 * 4
    assert report["memory"][0].keys() >= {"peak_bytes", "encoder_peak_bytes"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [0]}, "`steps` must be at least 1, but is 0"),
        ({"repeats": 0}, "`repeats` must be at least 1, but is 0"),
        ({"model": "mine"}, r"`size` \(tiny\) has no effect with `model` \(mine\)"),
        ({"contenders": ["cache"]}, r"`contenders` must be one of 'decoder', .* but is 'cache'\."),
        ({"length": 65}, "`length` must be between 1 and 64 .* but is 65"),
        ({"compare": "no_such_module:function"}, "`compare` .* cannot be imported"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(SpeedArguments(**TINY | arguments), "command")
