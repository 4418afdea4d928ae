# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.tokenizers import train_tokenizer
from tests.killed_runs import Attempt, Trainer, find_differences, find_wrong_losses, run_with_kills
from tests.training_runs import write_config
from training.checkpoints import checkpoints_in

OPTIONS = ("--max_steps=40", "--save_steps=2", "--eval_steps=20", "--num_samples=0", "--tracker=none")
SMALL_WINDOWS = ("--shuffle_window=20", "--validation_documents=20")  # 40 steps: 24 windows, several epochs


@pytest.mark.parametrize(("num_processes", "kills", "streaming"), [(1, 3, False), (2, 2, False), (1, 2, True)])
def test_killed_runs_end_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_processes: int, kills: int, streaming: bool
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    config = write_config(tmp_path)
    options = [*OPTIONS]
    if streaming:
        options.append("--dataloader_num_workers=1")  # more take seconds to start
        train_tokenizer((tmp_path / "words.txt").read_text().splitlines(), 270).save_pretrained(tmp_path / "tokenizer")
        options += [f"--tokenizer={tmp_path / 'tokenizer'}", "--streaming", "--packing=packed", *SMALL_WINDOWS]
    trainer = Trainer([str(config), *options], num_processes)
    uninterrupted = trainer.attempt(tmp_path / "uninterrupted")
    assert list(uninterrupted.losses) == list(range(40))
    attempts = run_with_kills(trainer, tmp_path / "killed", kills, num_steps=40, seed=num_processes)
    assert [attempt.killed for attempt in attempts] == [True] * kills + [False]
    steps = [max(attempt.losses, default=0) for attempt in attempts[:-1]]
    assert all(step >= 40 * part // kills for part, step in enumerate(steps))  # kills are spread over the whole run
    assert find_wrong_losses(uninterrupted.losses, attempts) == []
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == []

    newest = checkpoints_in(tmp_path / "killed")[-1]
    tensors = load_file(newest)
    name = next(name for name in tensors if name.startswith("exp_avg."))
    flat = tensors[name].view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(1.0))  # the last bit
    save_file(tensors, newest)
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == [name]


def test_find_wrong_losses() -> None:
    expected = {0: 1.0, 1: 0.5, 2: 0.25}
    good = Attempt({1: 0.5, 2: 0.25}, killed=True)
    assert find_wrong_losses(expected, [good]) == []
    assert find_wrong_losses(expected, [good, Attempt({0: 1.0, 1: 0.5 + 2**-50}, killed=False)]) == [1]


def test_failed_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"The run failed\. See .*run.0.stderr"):
        Trainer([str(tmp_path / "missing.yaml")]).attempt(tmp_path / "run")
    assert "missing.yaml does not exist" in (tmp_path / "run.0.stderr").read_text()
