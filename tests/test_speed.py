# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The measurements measure what they say; no time is asserted."""

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
from eval.benchmarks.contenders import ABLATIONS, ConcatenatingCache, Contender, Generate, causal_lm, encoder
from eval.benchmarks.resources import Machine, PeakMemory, best_time, decoder_work, measure_machine, memory_of
from eval.benchmarks.speed import STEPS_IN_A_QUEUE, SpeedArguments, main, measure, race
from eval.benchmarks.speed_report import main as plot_reports
from eval.benchmarks.speed_report import write_report
from modeling_aogpt import AOGPTConfig, cached_decoder
from modeling_aogpt.decoding_state import AnyOrderCache
from modeling_aogpt.devices import HAS_ONEDNN, Linear
from tests.references import random_model

TINY = {"size": "tiny", "length": 16, "steps": [2, 16], "repeats": 1, "device": "cpu", "threads": 1}


def decode(generate: Generate) -> torch.LongTensor:
    torch.manual_seed(0)
    return generate(3, 12, 4)


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_is_taken_away_changes_no_sample(name: str) -> None:
    model = random_model()
    plain = decode(speed.decoder(model))
    assert torch.equal(decode(ABLATIONS[name](model)), plain)
    assert torch.equal(decode(speed.decoder(model)), plain)  # and nothing of it stays


@pytest.mark.parametrize("name", [None, *ABLATIONS])
def test_what_is_taken_away_is_gone_and_nothing_else(name: str | None) -> None:
    """What the last layer is given in 4 steps of 3 tokens: rows, how many of them come out, a table, a cache."""
    model = random_model()
    seen: dict[str, list] = {"rows": [], "kept": [], "has_table": [], "cache": []}

    def note(module: torch.nn.Module, arguments: tuple, given: dict, output: torch.Tensor) -> None:
        seen["rows"].append(arguments[0].shape[1])
        seen["kept"].append(output.shape[1])
        seen["has_table"].append(given["modulations"] is not None)
        seen["cache"].append(type(given["past_key_values"]))

    model.model.layers[-1].register_forward_hook(note, with_kwargs=True)
    decode(speed.decoder(model) if name is None else ABLATIONS[name](model))
    assert seen["rows"] == ([3, 6, 9, 12] if name == "no-cache" else [3, 5, 5, 5])
    assert seen["kept"] == ([3, 5, 5, 5] if name == "whole-last-layer" else [3, 3, 3, 3])
    assert seen["has_table"] == [name != "no-modulation-table"] * 4
    assert seen["cache"] == [ConcatenatingCache if name == "concatenated-cache" else AnyOrderCache] * 4


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("name", ["plain-products", "no-cache"])
def test_plain_products_are_not_onednns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_decoder, "MIN_PASSES_TO_PACK", 1)
    generate = ABLATIONS[name](random_model().float())
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        decode(generate)
    names = {event.key for event in profiler.key_averages()}
    of_onednn = {"mkldnn::_linear_pointwise", "mkldnn::_reorder_linear_weight"}
    assert names & of_onednn == (set() if name == "plain-products" else of_onednn)


def test_a_command_says_what_is_wrong_in_a_line() -> None:
    with pytest.raises(SystemExit, match=r"^error: length is 65; this model takes 1 to 64"):
        main(["--size", "tiny", "--length", "65", "--device", "cpu"])


def test_a_concatenating_cache_gives_the_same_in_fresh_memory() -> None:
    config, kinds = random_model().config, (AnyOrderCache, ConcatenatingCache)
    caches = [kind(config, 1, 4, torch.float64, ["cpu"] * config.num_hidden_layers) for kind in kinds]
    for start, stop in ((0, 2), (1, 4)):
        states = torch.randn(2, 1, 2, stop - start, 8, dtype=torch.float64)
        for cache in caches:
            cache.write_to(slice(start, stop), stop)
        (plain, _), (concatenated, _) = (cache.update(*states, layer_idx=1) for cache in caches)
        assert torch.equal(plain, concatenated)
        assert plain.data_ptr() == caches[0].layers[1][0].data_ptr()
        assert concatenated.data_ptr() != caches[1].layers[1][0].data_ptr()


def test_speed_is_measured_without_libraries_of_data() -> None:
    """On a machine with a GPU and little else."""
    code = "import sys; sys.modules |= {'datasets': None, 'evaluate': None}; import eval.benchmarks.speed"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)


def test_the_encoder_has_the_decoders_blocks() -> None:
    config = random_model().config
    contender = encoder(config, torch.device("cpu"), torch.float32)
    assert contender.one_step_only
    assert contender.generate(2, 12, 1).shape == (2, 12, config.hidden_size)


@pytest.mark.parametrize("has_instructions", [False, True])
def test_an_encoder_in_bfloat16_is_computed_as_the_decoder(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    contender = encoder(random_model().config, torch.device("cpu"), torch.bfloat16)
    assert contender.generate(2, 12, 1).dtype == (torch.bfloat16 if has_instructions else torch.float32)


def test_a_causal_lm_makes_as_many_tokens(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 9}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)).save_pretrained(tmp_path)
    contender = causal_lm(str(tmp_path), 9, torch.device("cpu"), torch.float32)
    assert contender.one_by_one
    assert contender.generate(3, 9, 9).shape == (3, 9)
    with pytest.raises(ValueError, match=r"length is 10, but .* takes at most 9 tokens"):
        causal_lm(str(tmp_path), 10, torch.device("cpu"), torch.float32)


def test_the_table_of_a_causal_lm_is_that_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "name", 8, torch.device("cpu"), torch.float32
    unknown = MambaConfig()
    unknown.max_position_embeddings = None
    monkeypatch.setattr("eval.benchmarks.contenders.load_pretrained", lambda *given, **options: Mock(config=unknown))
    assert causal_lm(*arguments).one_by_one
    text = LlavaConfig(text_config=LlamaConfig(max_position_embeddings=7))
    monkeypatch.setattr("eval.benchmarks.contenders.load_pretrained", lambda *given, **options: Mock(config=text))
    with pytest.raises(ValueError, match="length is 8, but name takes at most 7 tokens"):
        causal_lm(*arguments)


def test_floor_counts_weights_and_rows() -> None:
    """A model of the GPT-2 sizes: 85 million weights in blocks, 38.6 million in the head."""
    work = decoder_work(AOGPTConfig(), 1, 1024, 1024, torch.float32)
    weights, cache = 12 * 12 * 768**2 + 768 * 50304, 2 * 12 * 768 * 512
    assert work.bytes == 1024 * 4 * (weights + cache)
    rows = 1024 * (12 * (12 * 768**2 + 768 * 1024) + 768 * 50304)
    assert work.flop == 2 * rows
    assert work.seconds(Machine(work.flop, work.bytes / 3)) == pytest.approx(3)
    few = decoder_work(AOGPTConfig(), 4, 1024, 32, torch.float32)
    entering = 31 * 31 * 4
    in_last_layer = 10 * 768**2 + 768 * 1024  # neither queries, attention, projection nor MLP
    assert few.flop == 2 * (4 * rows + entering * (12 * (12 * 768**2 + 768 * 1024) - in_last_layer))


@pytest.mark.parametrize("device", ["cpu", "meta"])  # which stands in for an accelerator
def test_rates_count_operations_and_bytes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By the operations that are called, whose time is taken to be a second. An accelerator reads all weights at a call.
    """
    counted = {"flop": 0.0, "bytes": 0.0, "reads": 0}

    def count(layer: Linear, arguments: tuple, output: torch.Tensor) -> None:
        if len(arguments[0]) == 1:
            counted["bytes"] += layer.weight.nbytes
            counted["reads"] += 1
        else:
            counted["flop"] += 2 * len(arguments[0]) * layer.weight.numel()

    def second(function: Callable[[], object], device: torch.device, num_calls: int) -> float:
        function()
        return 1.0

    monkeypatch.setattr(resources, "best_time", second)
    with torch.nn.modules.module.register_module_forward_hook(count):
        machine = measure_machine(AOGPTConfig(**speed.SIZES["tiny"]), torch.device(device), torch.bfloat16)
    assert machine == Machine(counted["flop"], counted["bytes"])
    assert counted["bytes"] == 2 * 2 * 3 * 32 * 128
    assert counted["reads"] == {"cpu": 2 * 3, "meta": 1}[device]


def test_best_time_is_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([1.0, 1.0, 2.0, 8.0, 0.5, 1.5, 2.0, 2.0])  # of calls, four of them a round
    clock = [0.0]
    monkeypatch.setattr(resources, "time", SimpleNamespace(perf_counter=lambda: sum(clock)))
    found = best_time(lambda: clock.append(next(durations)), torch.device("cpu"), num_calls=4, repeats=2)
    assert found == 6.0 / 4
    assert next(durations, None) is None


def test_an_accelerator_is_warm_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded before anything is timed, and what stands for a step of many is timed in a queue of steps."""
    seen: list[Any] = []
    monkeypatch.setattr(speed, "synchronize", lambda device: seen.append("wait"))
    contenders = {
        "decoder": Contender(lambda *asked: seen.append(asked)),
        "encoder": Contender(lambda *asked: seen.append("pass"), one_step_only=True),
    }
    arguments = SpeedArguments(**TINY | {"steps": [4], "device": "cuda"})
    points = list(race(contenders, arguments, 16, torch.device("cuda")))
    generation, passes = ["wait", (1, 16, 4), "wait"], ["wait", *["pass"] * STEPS_IN_A_QUEUE, "wait"]
    assert seen == [*generation, *passes] * 2
    assert [point["is_extrapolated"] for point in points] == [False, True]


def test_products_of_cpus_are_left_out_elsewhere() -> None:
    both = [SpeedArguments(ablations=["all"], device=device).ablations for device in ("cpu", "cuda")]
    assert both[0] == list(ABLATIONS)
    assert set(both[0]) - set(both[1]) == {"plain-products"}


def test_the_floor_of_bfloat16_is_that_of_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = SpeedArguments(**TINY | {"steps": [2], "dtype": "bfloat16", "encoder": False, "ablations": ["none"]})
    dtypes = []

    def record(config: AOGPTConfig, device: torch.device, dtype: torch.dtype) -> Machine:
        dtypes.append(dtype)
        return Machine(1.0, 1.0)

    monkeypatch.setattr(speed, "measure_machine", record)
    for has_instructions in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=has_instructions: answer)
        measure(arguments, "command")
    assert dtypes == [torch.float32, torch.bfloat16]


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
    with pytest.raises(SystemExit, match=r"reports of one machine, length and dtype; these are of .*, 77, "):
        plot_reports(
            [str(folder / "speed.json"), str(tmp_path / "elsewhere.json"), "--output_dir", str(tmp_path / "both")]
        )
    written = (folder / "speed.md").read_text()
    assert "| 2 | 16 | encoder (one pass, times steps) |" in written
    used = f"torch {torch.__version__}, transformers {transformers.__version__}, python {platform.python_version()}. "
    assert f"; {used}Large" in written


def test_what_was_measured_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    short, long = (memory_of(config.to_dict(), length, "cpu", torch.float32, 1) for length in (32, 64))
    assert long["cache_bytes"] == 2 * short["cache_bytes"] == 2 * 2 * 2 * 32 * 32 * 4
    assert long["modulation_bytes"] == 2 * short["modulation_bytes"] == 2 * 32 * 4 * 32 * (2 * 6 + 2)


def test_peak_memory_is_that_of_the_block() -> None:
    with PeakMemory(torch.device("cpu")) as peak, mmap.mmap(-1, 2**27) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1  # 128 MiB that no allocator had at hand, gone by the end
        time.sleep(0.05)
    assert 2**27 <= peak.bytes < 2**28


def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    report = measure(SpeedArguments(**TINY | {"steps": [1]}, memory_lengths=[32]), "command")
    write_report(report, tmp_path)
    assert (tmp_path / "memory.png").stat().st_size > 10_000
    assert report["memory"][0]["length"] == 32
    assert report["memory"][0]["cache_bytes"] == 2 * 2 * 32 * 32 * 4
    assert report["memory"][0]["peak_bytes"] > 0


def test_what_would_take_long_is_left_out() -> None:
    report = measure(SpeedArguments(**TINY, limit_seconds=0.0), "command")
    found = [(point["contender"], point["num_steps"]) for point in report["points"]]
    assert found == [("decoder", 2), ("no-cache", 2), ("encoder", 2), ("decoder", 16), ("encoder", 16)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [0]}, "steps is 0; it must be at least 1"),
        ({"repeats": 0}, "repeats is 0"),
        ({"model": "mine"}, "size=tiny is of random weights, but model=mine is given"),
        ({"ablations": ["cache"]}, r"No ablations \['cache'\]: there are no-cache"),
        ({"length": 65}, "length is 65; this model takes 1 to 64"),
        ({"compare": "no_such_module:function"}, "compare='no_such_module:function': No module"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(SpeedArguments(**TINY | arguments), "command")
