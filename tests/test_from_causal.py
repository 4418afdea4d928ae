# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The comparison of any-order training from a left-to-right model with that from random weights."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from eval.benchmarks import from_causal
from tests.training_runs import RECIPE, STEPS, results, train, write_config

LLAMA = """
gated_mlp: true
hidden_act: silu
target_injection: none
qk_norm: false
attention_bias: false
attention_output_bias: false
mlp_bias: false
lm_head_bias: false
start_token_id: 0
num_samples: 0
tracker: none
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the YAML file of a tiny Llama, and train in this process."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        from_causal, "train", lambda argv: train(Path(argv[0]), Path(argv[1].partition("=")[2]), *argv[2:])
    )
    path = write_config(tmp_path)
    recipe = RECIPE.replace("documents", "packed").replace("target_embedding_size: 4\n", "")
    path.write_text(f"corpus: {tmp_path / 'words.txt'}\n{recipe}{LLAMA}")
    return path


def test_all_models_are_trained_and_compared(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_dir, folder = tmp_path / "runs", tmp_path / "report"
    argv = [f"--config={config}", "--seeds", "0", "1", f"--runs_dir={runs_dir}", f"--output_dir={folder}"]
    from_causal.main(argv)
    for seed in ("seed-0", "seed-1"):
        stock = AutoModelForCausalLM.from_pretrained(runs_dir / seed / "exported")
        assert type(stock) is LlamaForCausalLM
        for name in ("from-scratch", "from-scratch-adaln"):
            assert results(runs_dir / seed / name)["steps"] == 2 * STEPS
    found = json.loads((folder / "results.json").read_text())
    for name in (from_causal.FIRST_PHASE, *from_causal.RUNS):
        for measure in from_causal.MEASURES:
            one, other = (found["seeds"][seed][name]["final"][measure] for seed in ("0", "1"))
            mean, error = found["mean_and_standard_error"][name][measure]
            assert (mean, error) == (pytest.approx((one + other) / 2), pytest.approx(abs(one - other) / 2))
            assert f"{mean:.3f} ± {error:.3f}" in (folder / "report.md").read_text()
    runs, per_step = found["seeds"]["0"], 12 * 8
    for name, steps in (("converted", [4, 8, 12, 16]), ("from-scratch", [4, 8, 12, 16])):
        tokens, values = from_causal._curve(runs, name, "any_order")
        assert tokens == pytest.approx([step * per_step / 1e6 for step in steps])
        assert values[-1] == runs[name]["final"]["any_order"]
    assert (folder / "curves.png").stat().st_size > 10_000

    # Finished runs and models are kept.
    models = {path: path.stat().st_mtime_ns for path in runs_dir.rglob("*.safetensors")}
    monkeypatch.setattr("training.pretrain.Pretraining.train", None)
    from_causal.main(argv)
    assert {path: path.stat().st_mtime_ns for path in runs_dir.rglob("*.safetensors")} == models
    assert json.loads((folder / "results.json").read_text()) == found


def test_a_failed_run_ends_the_command(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(SystemExit) as error:
        from_causal.train([str(tmp_path / "none.yaml")])
    assert error.value.code == 1
