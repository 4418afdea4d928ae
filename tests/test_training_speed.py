# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pickle
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from eval.benchmarks import training_speed
from eval.benchmarks.resources import run_in_new_process
from eval.benchmarks.training_speed import Arguments, PlainAOGPT
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from tests.references import perturb_vectors

NAMES = {
    "tokens": "model.embed_tokens",
    "start": "model.start_embedding",
    "positions": "model.position_embeddings",
    "targets": "model.target_embeddings",
    "modulation.1": "model.modulation.proj",
    "norm": "model.norm",
    "head": "lm_head",
}
BLOCK = {
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "out": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "modulation.1": "modulation.proj",
}


@torch.no_grad()
def test_plain_implementation_computes_the_same_loss() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AOGPTConfig(**sizes, max_position_embeddings=10, vocab_size=30, target_embedding_size=8)
    plain = PlainAOGPT(config)
    perturb_vectors(plain)
    model = AOGPTForAnyOrderLM(config)
    names = NAMES | {
        f"blocks.{layer}.{old}": f"model.layers.{layer}.{new}" for layer in range(2) for old, new in BLOCK.items()
    }
    tensors = {}
    for name, weight in plain.state_dict().items():
        module, _, kind = name.rpartition(".")
        block, is_qkv, _ = module.partition(".qkv")
        for projection, part in zip("qkv", weight.chunk(3) if is_qkv else (), strict=False):
            tensors[f"model.layers.{block.rpartition('.')[2]}.self_attn.{projection}_proj.{kind}"] = part
        if not is_qkv:
            tensors[f"{names[module]}.{kind}"] = weight
    model.load_state_dict(tensors)
    ids, orders = torch.randint(30, (3, 10)), torch.stack([torch.randperm(10) for _ in range(3)])
    torch.testing.assert_close(plain(ids, orders), model(ids, orders=orders, labels=ids).loss)


def test_report_of_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_speed, "run_in_new_process", lambda function, *arguments: function(*arguments))
    options = ["--size", "tiny", "--steps", "3", "--repeats", "1", "--output_dir", str(tmp_path)]
    training_speed.main(options)
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["kind"] for run in results["runs"]] == ["plain", "ours", "ours, selective", "ours, full"]
    assert all(abs(run["losses"][0] - 6.24) < 0.1 for run in results["runs"] if run["kind"] != "plain")  # log 512
    losses = [run["losses"] for run in results["runs"]]
    assert losses[1] == losses[2] == losses[3]  # activation checkpointing changes nothing
    written = (tmp_path / "README.md").read_text()
    assert "| float32 | 3 x 64 | ours |" in written
    assert "| data / forward / backward / optimizer |" in written
    assert f"`python eval/benchmarks/training_speed.py {' '.join(options)}`" in written


def test_implementations_take_turns_and_the_fastest_round_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = training_speed.measure("ours", Arguments("tiny", batch_size=1, steps=1))
    called: list[str] = []

    def measure(_: object, kind: str, arguments: Arguments) -> dict:
        called.append(kind)
        seconds, flops = {1: (2.0, 3e9), 2: (1.0, 4e9), 3: (4.0, 8e9)}[called.count(kind)]  # by round
        return template | {"kind": kind, "step_seconds": seconds, "tokens_per_second": 1000, "peak_flops": flops}

    monkeypatch.setattr(training_speed, "run_in_new_process", measure)
    training_speed.main(["--size", "tiny", "--repeats", "3", "--output_dir", str(tmp_path)])
    assert called == [*training_speed.KINDS] * 3
    results = json.loads((tmp_path / "results.json").read_text())
    for run in results["runs"]:
        assert (run["step_seconds"], run["all_seconds"], run["peak_flops"]) == (1.0, [2.0, 1.0, 4.0], 4e9)
    assert results["peak_flops"] == 8e9  # utilization is relative to the highest speed
    written = (tmp_path / "README.md").read_text()
    assert len([line for line in written.splitlines() if "| 1.00 | 1.00 |" in line and "% | 4 GFLOP/s | " in line]) == 4


@pytest.mark.parametrize("kinds", [("plain",), tuple(training_speed.KINDS)])
def test_implementations_without_memory_are_reported(
    kinds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(kind: str, arguments: Arguments) -> dict:
        if kind in kinds:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return training_speed.measure(kind, arguments)

    error = pickle.loads(pickle.dumps(torch.OutOfMemoryError("full")))  # as between processes
    assert isinstance(error, torch.OutOfMemoryError)
    monkeypatch.setattr(training_speed, "run_in_new_process", lambda function, *arguments: measure(*arguments))
    training_speed.main(["--size", "tiny", "--output_dir", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [run["kind"] for run in results["runs"]] == [kind for kind in training_speed.KINDS if kind not in kinds]
    assert results["out_of_memory"] == list(kinds)  # not measured again in the second round
    written = (tmp_path / "README.md").read_text()
    assert all(f"| {kind} | out of memory |" in written for kind in kinds)


def test_the_plain_optimizer_is_that_of_the_released_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fused on a GPU only. Here, the tensors of the stand-in for a GPU are on the CPU."""
    made, create = [], training_speed.create_optimizer
    monkeypatch.setattr(training_speed, "create_optimizer", lambda *given: made.append(create(*given)) or made[-1])
    training_speed.make_step("plain", Arguments("tiny"))
    stand_in = MagicMock(type="cuda")
    monkeypatch.setattr(training_speed, "DEVICE", stand_in)
    training_speed.make_step("plain", Arguments("tiny"))
    groups = [[(group["fused"], group["foreach"]) for group in optimizer.param_groups] for optimizer in made]
    assert groups == [[(False, False)] * 2, [(True, False)] * 2]


def test_the_second_half_of_the_steps_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = (0, 50, 100, 110)
    times = iter([float(start + after) for start in starts for after in (0, 1, 3, 6, 10)])
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(training_speed, "mark", lambda: next(times))
    monkeypatch.setattr(torch, "compile", lambda module: compiled.append(module) or module)
    found = training_speed.measure("ours", Arguments("tiny", steps=4, compile=True))
    assert (found["step_seconds"], found["tokens_per_second"]) == (10, 19.2)
    assert found["shares"] == {"data": 0.1, "forward": 0.2, "backward": 0.3, "optimizer": 0.4}
    assert len(compiled) == 2  # the loss of the head, and the rest


def test_bf16_needs_bfloat16_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    rounded, exact = (
        training_speed.measure("ours", Arguments("tiny", steps=3, mixed_precision=precision))
        for precision in ("bf16", "no")
    )
    assert (rounded["precision"], exact["precision"]) == ("bf16", "float32")
    assert 0 < abs(rounded["losses"][-1] - exact["losses"][-1]) < 0.05  # blocks are initialized as the identity
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    with pytest.raises(
        SystemExit, match=r"^error: `mixed_precision` is bf16, but this CPU has no bfloat16 instructions"
    ):
        training_speed.main(["--size", "tiny", "--mixed_precision", "bf16"])


def test_each_measurement_is_a_new_process() -> None:
    found = run_in_new_process(training_speed.measure, "ours, full", Arguments("tiny", 2, steps=1))
    assert (found["kind"], found["precision"], found["batch_size"], found["length"]) == ("ours, full", "float32", 2, 64)
    assert len(found["losses"]) == 1
    assert run_in_new_process(os.getpid) != os.getpid()
