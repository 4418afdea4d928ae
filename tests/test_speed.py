# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks of generation. No test asserts a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from common.hardware import versions
from eval.benchmarks import speed
from eval.benchmarks.contenders import (
    CONTENDERS,
    ENCODERS,
    SAMPLERS,
    Contender,
    load_causal_lm,
    make_contenders,
    make_encoder,
    sample_any_order,
    sample_causal_lm,
)
from eval.benchmarks.speed import SpeedArguments, main, measure, time_contenders
from eval.benchmarks.speed_report import make_panel
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from tests.references import random_model

TINY = {"size": "tiny", "length": 16, "steps": [2, 16], "repeats": 1, "device": "cpu"}


def decode(contender: Contender) -> torch.LongTensor:
    torch.manual_seed(0)
    return contender.sample(3, 12, 4)


@pytest.mark.parametrize("name", ["no-cache", "no-lemma"])
def test_ablations_do_not_change_samples(name: str) -> None:
    model = random_model()
    if name == "no-lemma":  # draws more tokens than it keeps
        model.generation_config.do_sample = False
    plain = decode(sample_any_order(model, **SAMPLERS["decoder"]))
    assert torch.equal(decode(sample_any_order(model, **SAMPLERS[name])), plain)
    assert torch.equal(decode(sample_any_order(model, **SAMPLERS["decoder"])), plain)  # the model is restored


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
    decode(sample_any_order(model, **SAMPLERS[name]))
    if rows is None:
        assert len(seen["rows"]) < 24
    else:
        assert (seen["rows"], seen["queries"]) == (rows, queries)


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
    decode(sample_any_order(encoder, **SAMPLERS[name]))
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
        (torch.zeros(1, 3), r"of shape \(1, 3\)"),
        (torch.tensor([[0, 5]]), "ids from 0 to 5"),
        (torch.tensor([[-1, 1]]), "ids from -1 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(result).sample(1, 2, 1)


def test_benchmarks_of_speed_need_no_data_sets() -> None:
    """Machines with a GPU often have only PyTorch, Transformers, Accelerate and matplotlib."""
    absent = dict.fromkeys(("datasets", "evaluate", "tensorboard"))
    code = f"import sys; sys.modules |= {absent}; import eval.benchmarks.speed, tests.conftest, tests.test_cuda"
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
    assert list(found) == [str(tmp_path), "llama"]
    for contender in found.values():
        assert not contender.takes_steps
        assert contender.sample(3, 9, 9).shape == (3, 9)
    with pytest.raises(ValueError, match=r"`length` must be at most 20 for .*, but is 21"):
        load_causal_lm(str(tmp_path), 21)


def test_the_llama_has_about_as_many_weights_as_the_decoder() -> None:
    found = make_contenders(["decoder", "llama"], AOGPTForAnyOrderLM(AOGPTConfig(**speed.SIZES["tiny"])), 9)
    layers = 2 * (4 * 32**2 + 8 * 32**2)
    norms, embeddings = 5 * 32, 2 * 512 * 32
    assert found["llama"].num_parameters == pytest.approx(layers + norms + embeddings, rel=0.01)


@pytest.mark.parametrize("compiles", [False, True])
def test_causal_lms_start_with_the_start_token_and_do_not_stop(
    compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = save_gpt2(tmp_path, 20), []

    def generate(start: torch.LongTensor, **settings: Any) -> torch.LongTensor:
        calls.append(settings | {"start": start.tolist()})
        return start.repeat(1, 6)

    monkeypatch.setattr(model, "generate", generate)
    sample_causal_lm(model, compiles).sample(1, 5, 5)
    assert model.generation_config.eos_token_id is None
    [call] = calls
    assert call["start"] == [[3]]
    assert call["do_sample"]
    assert call["top_k"] == 0
    assert call.get("cache_implementation") == ("static" if compiles else None)


def fake(name: str, calls: list[tuple], **attributes: Any) -> Contender:
    """Return a contender that records its calls."""

    def generate(batch_size: int, length: int, num_steps: int) -> torch.LongTensor:
        calls.append((name, batch_size, length, num_steps))
        return torch.zeros(batch_size, length, dtype=torch.long)

    return Contender(generate, name, num_ids=1, **attributes)


@pytest.mark.parametrize(("device", "compile"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_warm_up(device: str, compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full generation warms up an accelerator, and 8 tokens warm up a CPU. All jobs take turns in each round."""
    monkeypatch.setattr(speed, "synchronize", lambda device: None)
    calls: list[tuple] = []
    arguments = SpeedArguments(**TINY | {"steps": [4, 99], "device": device, "repeats": 2, "compile": compile})
    contenders = {name: fake(name, calls) for name in ("decoder", "encoder")}
    contenders["one-by-one"] = fake("one-by-one", calls, takes_steps=False)
    rounds = list(time_contenders(contenders, arguments, 2, 16, torch.device(device)))
    assert [len(point["all_seconds"]) for point in rounds[0] + rounds[1]] == [1] * 5 + [2] * 5
    jobs = [("decoder", 2, 16, 4), ("encoder", 2, 16, 4), ("decoder", 2, 16, 16), ("encoder", 2, 16, 16)]
    jobs.append(("one-by-one", 2, 16, 16))
    warm_up = jobs if device == "cuda" else [(name, 2, 8, 1) for name, *_ in jobs]
    assert calls == [*warm_up * (2 if compile else 1), *jobs, *jobs]  # the second generation records CUDA graphs


def test_ratios_are_those_of_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is slower in the second round. The ratio is the median, and the seconds are those of the fastest."""
    seconds = iter([1.0, 3.0, 8.0, 16.0, *(10.0, 20.0, 80.0, 80.0), *(1.0, 4.0, 8.0, 24.0)])
    monkeypatch.setattr(speed, "time_generation", lambda *_: next(seconds))
    contenders = {
        name: fake(name, [], takes_steps=name in ("decoder", "encoder"))
        for name in ("decoder", "encoder", "one-by-one", "llama")
    }
    arguments = SpeedArguments(**TINY | {"steps": [4], "repeats": 3})
    *_, points = time_contenders(contenders, arguments, 1, 16, torch.device("cpu"))
    found = {point["contender"]: (point["seconds"], point["ratio"]) for point in points}
    assert found == {"decoder": (1.0, 1.0), "encoder": (3.0, 3.0), "one-by-one": (8.0, 1.0), "llama": (16.0, 2.0)}


def test_contenders_are_chosen_by_name() -> None:
    assert set(SpeedArguments(contenders=["all"]).contenders) == set(CONTENDERS)
    assert SpeedArguments(contenders=["none"]).contenders == ["decoder", "one-by-one"]
    assert SpeedArguments(contenders=["sedd", "decoder"]).contenders == ["decoder", "one-by-one", "sedd"]


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
    arguments = "--size tiny --length 16 --steps 16 2 --batch_size 1 2 --repeats 2 --device cpu"
    arguments += " --contenders no-cache encoder mine:make"
    folder = tmp_path / "report"
    main([*arguments.split(), "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    found = {(p["contender"], p["batch_size"], p["num_steps"]) for p in report["points"]}
    names = ("decoder", "no-cache", "encoder", "mine:make")
    expected = {(name, batch, steps) for name in names for batch in (1, 2) for steps in (2, 16)}
    assert found == expected | {("one-by-one", batch, None) for batch in (1, 2)}
    assert list(report["contenders"]) == ["decoder", "one-by-one", *names[1:]]
    for point in report["points"]:
        assert len(point["all_seconds"]) == 2
        assert point["seconds"] == min(point["all_seconds"]) > 0
        if point["contender"] in ("decoder", "one-by-one"):
            assert point["ratio"] == 1.0
    assert capsys.readouterr().out.count("called with 2 16 16") == 2
    assert report["hardware"]["threads"] == torch.get_num_threads()
    assert report["versions"] == versions()
    assert report["command"].startswith("python eval/benchmarks/speed.py --size tiny")
    assert (folder / "speed.png").stat().st_size > 10_000
    written = (folder / "speed.md").read_text()
    assert "| 2 | 16 | encoder | " in written
    assert "16 tokens per sequence, float32, random weights." in written
    assert f"| torch | {versions()['torch']} |" in written


def test_a_contender_without_steps_is_a_horizontal_line() -> None:
    rows = [("decoder", 32, 1.0), ("decoder", 64, 2.0), ("gpt2", None, 3.1)]
    points = [
        {"contender": name, "num_steps": steps, "seconds": seconds, "batch_size": 1} for name, steps, seconds in rows
    ]
    points.append(points[0] | {"batch_size": 2})
    assert make_panel(points, 1, 64).lines == {
        "decoder": [(32, 1.0), (64, 2.0)],
        "gpt2": [(32, 3.1), (64, 3.1)],
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
        "--size tiny --length 16 --steps 2 --batch_size 1 2 --repeats 1 --device cpu --contenders interrupted:make"
    )
    folder = tmp_path / "report"
    with pytest.raises(RuntimeError):
        main([*arguments.split(), "--output_dir", str(folder)])
    report = json.loads((folder / "speed.json").read_text())
    assert [point["batch_size"] for point in report["points"]] == [1] * 3
    assert "| 1 | 2 | interrupted:make |" in (folder / "speed.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": [0]}, "`steps` must be at least 1, but is 0"),
        ({"repeats": 0}, "`repeats` must be at least 1, but is 0"),
        ({"model": "mine"}, r"`size` \(tiny\) has no effect with `model` \(mine\)"),
        ({"contenders": ["cache"]}, r"`contenders` must be one of 'decoder', .* but is 'cache'\."),
        ({"length": 65}, "`length` must be an integer from 1 to 64, but is 65"),
        ({"contenders": ["no_such_module:function"]}, "contender .* cannot be imported"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(SpeedArguments(**TINY | arguments), "command")
