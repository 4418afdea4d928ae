# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eval import training_speed
from eval.plain_aogpt import PlainAOGPT
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from tests.references import perturb_vectors

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "training_speed"
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
    "qkv": "attention.qkv_proj",
    "out": "attention.o_proj",
    "q_norm": "attention.q_norm",
    "k_norm": "attention.k_norm",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "modulation.1": "modulation.proj",
}


@torch.no_grad()
def test_the_yardstick_computes_the_same_loss() -> None:
    plain = PlainAOGPT(layers=2, width=16, heads=2, length=10, vocab_size=30)
    perturb_vectors(plain)
    config = AOGPTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=10, vocab_size=30
    )
    model = AOGPTForAnyOrderLM(config)
    names = NAMES | {
        f"blocks.{layer}.{old}": f"model.layers.{layer}.{new}" for layer in range(2) for old, new in BLOCK.items()
    }
    tensors = {
        f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": weight
        for name, weight in plain.state_dict().items()
    }
    model.load_state_dict(tensors)
    ids, orders = torch.randint(30, (3, 10)), torch.stack([torch.randperm(10) for _ in range(3)])
    torch.testing.assert_close(plain(ids, orders), model(ids, orders=orders, labels=ids).loss)


def test_report_of_a_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_speed, "in_own_process", lambda wrapper, *rest: training_speed.measure(*rest))
    options = ["--size", "tiny", "--bf16_length", "8", "--steps", "3", "--out", str(tmp_path)]
    training_speed.main(options)
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["runs"]) == 8
    assert all(abs(run["losses"][0] - 4.16) < 0.1 for run in results["runs"] if run["kind"] != "plain")  # log 64
    written = (tmp_path / "README.md").read_text()
    assert "| bf16 | 1 x 8 | ours |" in written
    assert f"`python eval/training_speed.py {' '.join(options)}`" in written


def test_what_is_wrong_is_said_before_anything_is_measured(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        training_speed.main(["--size", "tiny", "--bf16", "8"])
    (line,) = capsys.readouterr().err.splitlines()  # no usage
    assert line.startswith("error: unrecognized arguments: --bf16 8")
    with pytest.raises(SystemExit, match=r"^error: bf16_length is 17; tiny takes 1 to 16"):
        training_speed.main(["--size", "tiny", "--bf16_length", "17"])
    with pytest.raises(SystemExit, match=r"^error: bf16_steps is 0"):
        training_speed.main(["--size", "tiny", "--bf16_steps", "0"])


def test_a_measurement_is_a_command_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def run(command: list[str], **options: Any) -> SimpleNamespace:
        assert command[:4] == ["numactl", "-C", "0", sys.executable]
        training_speed.main(command[5:])
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(training_speed.subprocess, "run", run)
    found = training_speed.in_own_process("numactl -C 0", "ours, full", "bf16", "tiny", 2, 8, 1)
    assert (found["kind"], found["precision"], found["batch_size"], found["length"]) == ("ours, full", "bf16", 2, 8)
    assert len(found["losses"]) == 1


def test_a_processor_with_bfloat16_is_said_to_have_it() -> None:
    results = json.loads((RESULTS / "results.json").read_text()) | {"command": "command"}
    texts = [training_speed.report(results | {"has_bfloat16": has}) for has in (False, True)]
    assert ["multiplies in float32" in text for text in texts] == [True, False]
