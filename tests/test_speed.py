# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of generation. No test asserts a time."""

import json
import mmap
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlavaConfig, MambaConfig

from common.hardware import versions
from eval.benchmarks import resources, speed
from eval.benchmarks.contenders import (
    ABLATIONS,
    ConcatenatingCache,
    Contender,
    Generate,
    make_causal_lm,
    make_decoder,
    make_encoder,
)
from eval.benchmarks.resources import Machine, PeakMemory, best_time, count_work, measure_length, measure_machine
from eval.benchmarks.speed import QUEUED_STEPS, SpeedArguments, main, measure, time_contenders
from eval.benchmarks.speed_report import main as plot_reports
from eval.benchmarks.speed_report import write_report
from modeling_aogpt import AOGPTConfig, decoding_state
from modeling_aogpt.decoding_state import AnyOrderCache
from modeling_aogpt.devices import HAS_ONEDNN, Linear
from tests.references import random_model

TINY = {"size": "tiny", "length": 16, "steps": [2, 16], "repeats": 1, "device": "cpu", "threads": 1}


def decode(generate: Generate) -> torch.LongTensor:
    torch.manual_seed(0)
    return generate(3, 12, 4)


@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_do_not_change_samples(name: str) -> None:
    model = random_model()
    plain = decode(make_decoder(model))
    assert torch.equal(decode(ABLATIONS[name](model)), plain)
    assert torch.equal(decode(make_decoder(model)), plain)  # the model is restored


@pytest.mark.parametrize("name", [None, *ABLATIONS])
def test_ablations_remove_one_thing_each(name: str | None) -> None:
    """Record in 4 steps of 3 tokens: rows, outputs and cache of the last layer, and whether it gets a table."""
    model = random_model()
    seen: dict[str, list] = {"rows": [], "kept": [], "has_table": [], "cache": []}

    def record(module: torch.nn.Module, arguments: tuple, options: dict, output: torch.Tensor) -> None:
        seen["rows"].append(arguments[0].shape[1])
        seen["kept"].append(output.shape[1])
        seen["has_table"].append(options["modulations"] is not None)
        seen["cache"].append(type(options["past_key_values"]))

    model.model.layers[-1].register_forward_hook(record, with_kwargs=True)
    decode(make_decoder(model) if name is None else ABLATIONS[name](model))
    assert seen["rows"] == ([3, 6, 9, 12] if name == "no-cache" else [3, 5, 5, 5])
    assert seen["kept"] == ([3, 5, 5, 5] if name == "whole-last-layer" else [3, 3, 3, 3])
    assert seen["has_table"] == [name != "no-modulation-table"] * 4
    assert seen["cache"] == [ConcatenatingCache if name == "concatenated-cache" else AnyOrderCache] * 4


@pytest.mark.skipif(not HAS_ONEDNN, reason="PyTorch was built without oneDNN")
@pytest.mark.parametrize("name", ["plain-products", "no-cache"])
def test_plain_products_do_not_use_onednn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_state, "MIN_PASSES_TO_PACK", 1)
    generate = ABLATIONS[name](random_model().float())
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        decode(generate)
    names = {event.key for event in profiler.key_averages()}
    onednn_names = {"mkldnn::_linear_pointwise", "mkldnn::_reorder_linear_weight"}
    assert names & onednn_names == (set() if name == "plain-products" else onednn_names)


def test_error_of_the_command_has_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^error: `length` must be between 1 and 64 .* but is 65"):
        main(["--size", "tiny", "--length", "65", "--device", "cpu"])


def test_concatenating_cache_returns_the_same_in_new_memory() -> None:
    config, kinds = random_model().config, (AnyOrderCache, ConcatenatingCache)
    caches = [kind(config, 1, 4, torch.float64, ["cpu"] * config.num_hidden_layers) for kind in kinds]
    for start, stop in ((0, 2), (1, 4)):
        states = torch.randn(2, 1, 2, stop - start, 8, dtype=torch.float64)
        for cache in caches:
            cache.set_slots(slice(start, stop), stop)
        (plain, _), (concatenated, _) = (cache.update(*states, layer_idx=1) for cache in caches)
        assert torch.equal(plain, concatenated)
        assert plain.data_ptr() == caches[0].layers[1][0].data_ptr()
        assert concatenated.data_ptr() != caches[1].layers[1][0].data_ptr()


def test_speed_needs_neither_datasets_nor_evaluate() -> None:
    code = "import sys; sys.modules |= {'datasets': None, 'evaluate': None}; import eval.benchmarks.speed"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)


def test_encoder_has_the_decoders_blocks() -> None:
    config = random_model().config
    contender = make_encoder(config, torch.device("cpu"), torch.float32)
    assert contender.one_step_only
    assert contender.generate(2, 12, 1).shape == (2, 12, config.hidden_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_encoder_runs_in_the_given_dtype(dtype: torch.dtype) -> None:
    contender = make_encoder(random_model().config, torch.device("cpu"), dtype)
    assert contender.generate(2, 12, 1).dtype == dtype


def test_causal_lm_generates_the_given_length(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 9}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).save_pretrained(tmp_path)
    contender = make_causal_lm(str(tmp_path), 9, torch.device("cpu"), torch.float32)
    assert contender.one_by_one
    assert contender.generate(3, 9, 9).shape == (3, 9)
    with pytest.raises(ValueError, match=r"`length` must be at most 9 for .*, but is 10"):
        make_causal_lm(str(tmp_path), 10, torch.device("cpu"), torch.float32)


def test_longest_sequence_of_a_causal_lm_is_that_of_its_text_model(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "name", 8, torch.device("cpu"), torch.float32
    unknown = MambaConfig()
    unknown.max_position_embeddings = None
    monkeypatch.setattr("eval.benchmarks.contenders.load_pretrained", lambda *given, **options: Mock(config=unknown))
    assert make_causal_lm(*arguments).one_by_one
    text = LlavaConfig(text_config=LlamaConfig(max_position_embeddings=7))
    monkeypatch.setattr("eval.benchmarks.contenders.load_pretrained", lambda *given, **options: Mock(config=text))
    with pytest.raises(ValueError, match="`length` must be at most 7 for name, but is 8"):
        make_causal_lm(*arguments)


def test_floor_counts_weights_and_rows() -> None:
    """With the sizes of GPT-2: 85 million weights in blocks and 38.6 million in the head."""
    work = count_work(AOGPTConfig(), 1, 1024, 1024, torch.float32)
    weights, cache = 12 * 12 * 768**2 + 768 * 50304, 2 * 12 * 768 * 512
    assert work.bytes == 1024 * 4 * (weights + cache)
    rows = 1024 * (12 * (12 * 768**2 + 768 * 1024) + 768 * 50304)
    assert work.flop == 2 * rows
    assert work.seconds(Machine(work.flop, work.bytes / 3)) == pytest.approx(3)
    few = count_work(AOGPTConfig(), 4, 1024, 32, torch.float32)
    entering = 31 * 31 * 4
    in_last_layer = 10 * 768**2 + 768 * 1024  # without queries, attention, projection and MLP
    assert few.flop == 2 * (4 * rows + entering * (12 * (12 * 768**2 + 768 * 1024) - in_last_layer))


@pytest.mark.parametrize("device", ["cpu", "meta"])  # an accelerator
def test_rates_are_operations_and_bytes_per_second(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the operations of calls that take one second each. An accelerator reads all weights in one call."""
    counted = {"flop": 0.0, "bytes": 0.0, "reads": 0}

    def count(layer: Linear, arguments: tuple, output: torch.Tensor) -> None:
        if len(arguments[0]) == 1:
            counted["bytes"] += layer.weight.nbytes
            counted["reads"] += 1
        else:
            counted["flop"] += 2 * len(arguments[0]) * layer.weight.numel()

    def run_for_a_second(function: Callable[[], object], device: torch.device, num_calls: int) -> float:
        function()
        return 1.0

    monkeypatch.setattr(resources, "best_time", run_for_a_second)
    with torch.nn.modules.module.register_module_forward_hook(count):
        machine = measure_machine(AOGPTConfig(**speed.SIZES["tiny"]), torch.device(device), torch.bfloat16)
    assert machine == Machine(counted["flop"], counted["bytes"])
    assert counted["bytes"] == 2 * 2 * 3 * 32 * 128
    assert counted["reads"] == {"cpu": 2 * 3, "meta": 1}[device]


def test_best_time_is_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([1.0, 1.0, 2.0, 8.0, 0.5, 1.5, 2.0, 2.0])  # of calls; a round has four
    clock = [0.0]
    monkeypatch.setattr(resources, "time", SimpleNamespace(perf_counter=lambda: sum(clock)))
    found = best_time(lambda: clock.append(next(durations)), torch.device("cpu"), num_calls=4, repeats=2)
    assert found == 6.0 / 4
    assert next(durations, None) is None


def test_timing_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full run warms up the accelerator. A single step is timed in a queue of steps."""
    seen: list[Any] = []
    monkeypatch.setattr(speed, "synchronize", lambda device: seen.append("wait"))
    contenders = {
        "decoder": Contender(lambda *arguments: seen.append(arguments)),
        "encoder": Contender(lambda *asked: seen.append("pass"), one_step_only=True),
    }
    arguments = SpeedArguments(**TINY | {"steps": [4], "device": "cuda"})
    points = list(time_contenders(contenders, arguments, 16, torch.device("cuda")))
    generation, passes = ["wait", (1, 16, 4), "wait"], ["wait", *["pass"] * QUEUED_STEPS, "wait"]
    assert seen == [*generation, *passes] * 2
    assert [point["is_extrapolated"] for point in points] == [False, True]


def test_cpu_ablations_are_left_out_on_a_gpu() -> None:
    both = [SpeedArguments(ablations=["all"], device=device).ablations for device in ("cpu", "cuda")]
    assert both[0] == list(ABLATIONS)
    assert set(both[0]) - set(both[1]) == {"plain-products"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floor_is_measured_in_the_given_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = SpeedArguments(**TINY | {"steps": [2], "dtype": dtype, "encoder": False, "ablations": ["none"]})
    dtypes = []

    def record(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
        dtypes.append(dtype)
        return Machine(1.0, 1.0)

    monkeypatch.setattr(speed, "measure_machine", record)
    assert measure(arguments, "command")["dtype"] == dtype
    assert dtypes == [getattr(torch, dtype)]


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine.py").write_text(
        "def make(config, device, dtype):\n"
        "    calls = []\n"
        "    def generate(batch_size, length, num_steps):\n"
        "        calls.append((batch_size, length, num_steps))\n"
        "        print('called with', *calls[-1])\n"
        "    return generate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = "--size tiny --length 16 --steps 16 2 --batch_size 1 2 --repeats 2 --threads 1 --device cpu"
    folder = tmp_path / "report"
    main([*arguments.split(), "--compare", "mine:make", "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    found = {(p["contender"], p["batch_size"], p["num_steps"]) for p in report["points"]}
    names = ("decoder", "no-cache", "encoder", "compare mine:make")
    assert found == {(name, batch, steps) for name in names for batch in (1, 2) for steps in (2, 16)}
    for point in report["points"]:
        assert len(point["all_seconds"]) == 2
        assert point["seconds"] == min(point["all_seconds"]) > 0
        assert point["is_extrapolated"] == (point["contender"] == "encoder")
    assert capsys.readouterr().out.count("called with 2 16 16") == 2
    assert report["hardware"]["threads"] == 1
    assert report["versions"] == versions()
    assert report["command"].startswith("python eval/benchmarks/speed.py --size tiny")
    assert (folder / "speed.png").stat().st_size > 10_000
    plot_reports([str(folder / "speed.json"), str(folder / "speed.json"), "--output_dir", str(tmp_path / "both")])
    assert (tmp_path / "both/speed.png").stat().st_size > 10_000
    elsewhere = json.loads((folder / "speed.json").read_text())
    elsewhere["hardware"]["threads"] = 77
    (tmp_path / "elsewhere.json").write_text(json.dumps(elsewhere))
    with pytest.raises(
        SystemExit, match=r"reports must come from the same machine, length and dtype, but they come from: .*, 77, "
    ):
        plot_reports(
            [str(folder / "speed.json"), str(tmp_path / "elsewhere.json"), "--output_dir", str(tmp_path / "both")]
        )
    written = (folder / "speed.md").read_text()
    assert "| 2 | 16 | encoder (one pass, times steps) |" in written
    used = f"torch {torch.__version__}, transformers {transformers.__version__}, python {platform.python_version()}. "
    assert f"; {used}On this machine, large" in written


def test_interrupted_run_keeps_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text(
        "def make(config, device, dtype):\n"
        "    def generate(batch_size, length, num_steps):\n"
        "        if (batch_size, num_steps) == (2, 2):\n"
        "            raise RuntimeError\n"
        "    return generate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = "--size tiny --length 16 --steps 2 --batch_size 1 2 --repeats 1 --threads 1 --device cpu"
    folder = tmp_path / "report"
    with pytest.raises(RuntimeError):
        main([*arguments.split(), "--compare", "interrupted:make", "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    assert [point["batch_size"] for point in report["points"]] == [1] * 4
    assert "| 1 | 2 | compare interrupted:make |" in (folder / "speed.md").read_text()


def test_memory_grows_with_the_length() -> None:
    config = AOGPTConfig(**speed.SIZES["tiny"])
    short, long = (measure_length(config.to_dict(), length, "cpu", torch.float32, 1) for length in (32, 64))
    assert long["cache_bytes"] == 2 * short["cache_bytes"] == 2 * 2 * 2 * 32 * 32 * 4
    assert long["modulation_bytes"] == 2 * short["modulation_bytes"] == 2 * 32 * 4 * 32 * (2 * 6 + 2)


def test_peak_memory_is_measured_within_the_block() -> None:
    with PeakMemory(torch.device("cpu")) as peak, mmap.mmap(-1, 2**27) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1  # 128 MiB that no allocator had cached, freed before the end
        time.sleep(0.05)
    assert 2**27 <= peak.bytes < 2**28


def test_memory_is_measured_in_another_process(tmp_path: Path) -> None:
    report = measure(SpeedArguments(**TINY | {"steps": [1]}, memory_lengths=[32]), "command")
    write_report(report, tmp_path)
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    assert report["memory"][0]["length"] == 32
    assert report["memory"][0]["cache_bytes"] == 2 * 2 * 32 * 32 * 4
    assert report["memory"][0]["peak_bytes"] > 0


def test_slow_contenders_are_left_out() -> None:
    report = measure(SpeedArguments(**TINY, limit_seconds=0.0), "command")
    found = [(point["contender"], point["num_steps"]) for point in report["points"]]
    assert found == [("decoder", 2), ("no-cache", 2), ("encoder", 2), ("decoder", 16), ("encoder", 16)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [0]}, "`steps` must be at least 1, but is 0"),
        ({"repeats": 0}, "`repeats` must be at least 1, but is 0"),
        ({"model": "mine"}, r"`size` \(tiny\) has no effect with `model` \(mine\)"),
        ({"ablations": ["cache"]}, r"`ablations` must be among no-cache, .* but contains cache\."),
        ({"length": 65}, "`length` must be between 1 and 64 .* but is 65"),
        (
            {"compare": "no_such_module:function"},
            r"`compare` \('no_such_module:function'\) cannot be imported\. .*No module",
        ),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(SpeedArguments(**TINY | arguments), "command")
