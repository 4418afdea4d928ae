# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Runs whose model is that of the best evaluation, and which stop when evaluations no longer improve."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from model_cards.measurements import read_run_measurements
from tests.training_runs import results, train, write_config
from training import pretrain
from training.checkpoints import checkpoints_in, step_of

OPTIONS = ("--keep_best", "any_order", "--early_stopping_patience", "2", "--eval_steps", "1", "--save_steps", "4")
MORE = ("--save_total_limit", "1", "--num_samples", "1", "--tracker", "none")
BITS = {1: 5.0, 2: 4.0, 3: 3.0, 4: 3.5, 5: 3.0, 6: 1.0}  # held-out bits per byte in random orders, by step


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return write_config(tmp_path)


def evaluate_as_given(
    monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None, bits: dict[int, float] = BITS
) -> None:
    """Make evaluations return `bits`. The evaluation of step `fails_at` ends the process."""
    evaluate = pretrain.Pretraining.evaluate

    def evaluate_step(run: pretrain.Pretraining) -> None:
        step = run.progress.step
        if step == fails_at:
            raise KeyboardInterrupt
        scores = {"left_to_right": 2.0, "any_order": bits[step], "sequences": 9, "bytes": 99}
        monkeypatch.setattr(pretrain, "evaluate", lambda *_: scores)
        evaluate(run)

    monkeypatch.setattr(pretrain.Pretraining, "evaluate", evaluate_step)


def test_the_model_is_the_best_and_the_run_stops_early(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        evaluate_as_given(patch)
        train(config, tmp_path / "whole", *OPTIONS, *MORE)
    # Step 5 equals the best step, so it is not better.
    assert [scores["step"] for scores in results(tmp_path / "whole")["evaluations"]] == [1, 2, 3, 4, 5]
    assert results(tmp_path / "whole")["steps"] == 5
    best, last = checkpoints_in(tmp_path / "whole")
    assert (step_of(best), step_of(last)) == (3, 5)
    state = load_file(best)
    for name, weight in AutoModel.from_pretrained(tmp_path / "whole" / "model").named_parameters():
        assert torch.equal(weight, state[f"average.{name}"]), name
    report = (tmp_path / "whole" / "report.md").read_text()
    assert "those of step 3." in report
    assert (tmp_path / "whole" / "samples" / "samples-00000003.txt").read_text().strip() in report
    assert [
        measured.metric_value for measured in read_run_measurements(results(tmp_path / "whole"), "text-generation")
    ] == [2.0, BITS[3]]

    for step in (3, 5):  # the checkpoint of the step is written, and the evaluation is not
        with monkeypatch.context() as patch:
            evaluate_as_given(patch, fails_at=step)
            with pytest.raises(KeyboardInterrupt):
                train(config, tmp_path / "resumed", *OPTIONS, *MORE)
    with monkeypatch.context() as patch:
        evaluate_as_given(patch)
        train(config, tmp_path / "resumed", *OPTIONS, *MORE)
        train(config, tmp_path / "resumed", *OPTIONS, *MORE)  # is finished
    with pytest.raises(SystemExit, match=r"other settings \(eval_sequences"):  # the best would be chosen from others
        train(config, tmp_path / "resumed", *OPTIONS, *MORE, "--eval_sequences=5")
    with pytest.raises(SystemExit, match=r"other settings \(eval_steps"):
        train(config, tmp_path / "resumed", *OPTIONS, *MORE, "--eval_steps=3")
    assert results(tmp_path / "resumed")["evaluations"] == results(tmp_path / "whole")["evaluations"]
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "resumed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_keys_that_contradict_each_other(config: Path, tmp_path: Path) -> None:
    for message, *options in (
        ("`early_stopping_patience` .*keep_best", "--early_stopping_patience", "2"),
        ("`keep_best=left_to_right` .*decoder", "--keep_best", "left_to_right", "--architecture", "encoder"),
    ):
        with pytest.raises(SystemExit, match=message):
            train(config, tmp_path / "run", *options)


def test_an_evaluation_that_is_not_finite_ends_the_run(config: Path, tmp_path: Path) -> None:
    options = ("--architecture=encoder", "--target_injection=none", "--learning_rate=1e30", "--max_steps=1")
    with pytest.raises(SystemExit, match="Held-out bits per byte must be finite"):
        train(config, tmp_path / "run", "--warmup_steps=0", "--ema_decay=0", *options, *MORE)
    assert not (tmp_path / "run" / "model").exists()


def test_an_extended_run_can_have_its_best_step_before_the_decay(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = {1: 5.0, 2: 2.0, 3: 4.0, 4: 4.0, 5: 3.0, 6: 3.0, 7: 3.0, 8: 3.0}
    schedule = ("--learning_rate_schedule=warmup_stable_decay", "--decay_steps=2")
    options = (*OPTIONS[:2], *OPTIONS[4:], *MORE, *schedule)
    for name, *lengths in (("whole", 8), ("extended", 6, 8)):
        for length in lengths:
            with monkeypatch.context() as patch:
                evaluate_as_given(patch, bits=bits | ({5: 1.0} if length == 6 else {}))
                train(config, tmp_path / name, *options, f"--max_steps={length}")
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "extended")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
