# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import errno
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters
from torch.optim import AdamW
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, set_seed

from common.data import load_data
from common.data_arguments import DataArguments
from common.files import lock_folder
from common.hardware import versions
from common.results import ORDER_SEED
from common.tokenizers import vocabulary_arguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM, modeling_aogpt
from modeling_aogpt.tokenization import load_tokenizer
from tests.tokenizers_of_all_kinds import llama, with_start, word_piece
from tests.training_runs import STEPS, assert_same_training, final_state, losses, results, scores, train, write_config
from training.batches import rows_of_samples
from training.checkpoints import checkpoints_in, step_of
from training.command_line import parse_arguments
from training.export_checkpoint import main as export_checkpoint
from training.pretrain import Pretraining, TrainingProgress
from training.status import StepStatus
from training.tracking import flops_per_token

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the YAML file of a run. Datasets are cached next to it."""
    path = write_config(tmp_path_factory.mktemp("corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", path.with_name("cache"))
        patch.setenv("HF_DATASETS_CACHE", str(path.with_name("cache")))  # for child processes
        yield path


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run without interruptions."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(config, out)
    return out


def test_a_run_cannot_be_trained_by_two_processes_at_a_time(config: Path, tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(SystemExit, match=r"^error: .* is in use by another process"):
        train(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_training_equals_a_plain_loop(config: Path, finished: Path) -> None:
    data = load_data(parse_arguments([str(config)])[1])
    set_seed(0)
    model = AOGPTForAnyOrderLM(
        AOGPTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            target_embedding_size=4,
            position_encoding="rotary",
            max_position_embeddings=8,
            **vocabulary_arguments(data.tokenizer),
        )
    )
    names = dict(model.named_parameters())
    average = {name: weight.detach().clone() for name, weight in names.items()}
    decayed = [weight for weight in names.values() if weight.dim() > 1]
    plain = [weight for weight in names.values() if weight.dim() < 2]
    optimizer = AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": plain, "weight_decay": 0}], betas=(0.9, 0.95)
    )
    collator = DataCollatorForAnyOrderLM(left_to_right_fraction=0.1, seed=0)
    expected_losses = []
    for step in range(STEPS):
        rate = 0.05 * (step + 1) / 3 if step < 2 else 0.005 + 0.045 * (1 + math.cos(math.pi * (step - 2) / 6)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        samples = list(range(12 * step, 12 * step + 12))
        rows = data.train[rows_of_samples(samples, len(data.train), seed=0)]["input_ids"]
        batch = collator([{"input_ids": ids, "order_seed": sample} for ids, sample in zip(rows, samples, strict=True)])
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        expected_losses.append(loss.item())
        decay = min(0.7, (2 + step) / (11 + step))
        for name, weight in names.items():
            average[name] = decay * average[name] + (1 - decay) * weight.detach()
    state = final_state(finished)
    torch.testing.assert_close(state["losses"], torch.tensor(expected_losses, dtype=torch.float64), rtol=1e-4, atol=0)
    for name, weight in names.items():
        torch.testing.assert_close(state[f"weights.{name}"], weight.detach(), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(state[f"average.{name}"], average[name], rtol=1e-3, atol=1e-4)


def test_bits_per_byte_of_evaluations(config: Path, finished: Path) -> None:
    rows = load_data(parse_arguments([str(config)])[1]).validation
    model = AOGPTForAnyOrderLM.from_pretrained(finished / "model")
    collator = DataCollatorForAnyOrderLM(left_to_right_fraction=0.0, seed=ORDER_SEED)
    batch = collator([{"input_ids": row["input_ids"], "order_seed": number} for number, row in enumerate(rows)])
    bits = sum(rows["num_bytes"]) * math.log(2)
    with torch.no_grad():
        left_to_right = model(batch["input_ids"], labels=batch["labels"]).loss * batch["labels"].numel() / bits
        any_order = model(**batch).loss * batch["labels"].numel() / bits
    last = results(finished)["evaluations"][-1]
    assert (last["step"], last["sequences"], last["bytes"]) == (STEPS, len(rows), sum(rows["num_bytes"]))
    assert last["left_to_right"] == pytest.approx(left_to_right.item(), rel=1e-5)
    assert last["any_order"] == pytest.approx(any_order.item(), rel=1e-5)
    assert last["left_to_right"] != last["any_order"]


def test_files_of_a_run(config: Path, finished: Path) -> None:
    written = sorted(path.name for path in finished.iterdir())
    assert written == [
        "checkpoint-00000006.safetensors",
        "checkpoint-00000008.safetensors",
        "loss.png",
        "model",
        "report.md",
        "results.json",
        "samples",
        "tensorboard",
        "tokenizer",
    ]
    assert (finished / "loss.png").read_bytes().startswith(b"\x89PNG")
    content = results(finished)
    assert content["arguments"]["learning_rate"] == 0.05
    assert content["arguments"]["corpus"] == [str(config.with_name("words.txt"))]
    assert content["corpus"]["train"]["sequences"] + content["corpus"]["validation"]["sequences"] == 60
    assert (content["steps"], content["sequences"], content["tokens"]) == (STEPS, 12 * STEPS, 12 * 8 * STEPS)
    assert [scored["step"] for scored in content["evaluations"]] == [4, 8]
    all_losses = losses(finished).tolist()
    assert content["loss_curve"]["step"] == [3, 6, 8]
    assert content["loss_curve"]["loss"] == pytest.approx(
        [sum(all_losses[:3]) / 3, sum(all_losses[3:6]) / 3, sum(all_losses[6:]) / 2]
    )
    assert 0.01 < content["peak_memory_gb"] < 100
    assert content["num_parameters"] == AOGPTForAnyOrderLM.from_pretrained(finished / "model").num_parameters()


def test_the_model_folder_has_the_averages_and_loads_without_the_package(finished: Path, tmp_path: Path) -> None:
    script = """
import sys
sys.modules["modeling_aogpt"] = None  # as if the package were not installed
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = tokenizer(["bao so"], return_tensors="pt")["input_ids"]
print(type(model).__name__, model.log_likelihood(ids).log_likelihood.item())
"""
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", script, str(finished / "model")]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    name, log_likelihood = shown.stdout.split()
    assert name == "AOGPTForAnyOrderLM"
    model = AOGPTForAnyOrderLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert tokenizer.model_max_length == 8
    ids = tokenizer(["bao so"], return_tensors="pt")["input_ids"]
    assert model.log_likelihood(ids).log_likelihood.item() == pytest.approx(float(log_likelihood), rel=1e-6)
    state = final_state(finished)
    for weight_name, weight in model.named_parameters():
        assert torch.equal(weight, state[f"average.{weight_name}"])
        assert not torch.equal(weight, state[f"weights.{weight_name}"])


KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
import training.checkpoints
from training.pretrain import main

save_file = training.checkpoints.save_file

def save_some(tensors, path, metadata):
    save_file(tensors, path, metadata)
    if "00000006" in str(path):
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

training.checkpoints.save_file = save_some
main(sys.argv[1:])
"""


def test_a_run_killed_while_saving_is_resumed_bit_for_bit(config: Path, finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(config), "--output_dir", str(tmp_path / "run")]
    killed = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = sorted(path.name for path in (tmp_path / "run").glob("*checkpoint-*"))
    assert left == [".checkpoint-00000006.safetensors.incomplete", "checkpoint-00000003.safetensors"]
    train(config, tmp_path / "run")
    assert_same_training(finished, tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        path.name for path in finished.iterdir()
    )


def test_a_run_is_resumed_after_the_disk_was_full(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        if "00000006" not in str(path):
            return save_file(tensors, path, metadata)
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("training.checkpoints.save_file", fail)
    with pytest.raises(SystemExit, match=r"^error: .*00000006.safetensors could not be written: .*No space left"):
        train(config, tmp_path)
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-00000003.safetensors"]
    monkeypatch.undo()
    train(config, tmp_path)
    assert_same_training(finished, tmp_path)


def act_before_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[Pretraining], object]) -> None:
    """Let runs call `act` before the step with this number."""
    step = Pretraining.step

    def run_step(run: Pretraining, *arguments: Any) -> StepStatus:
        if run.progress.step == number:
            act(run)
        return step(run, *arguments)

    monkeypatch.setattr(Pretraining, "step", run_step)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_is_resumed_bit_for_bit(
    config: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    before = signal.getsignal(number)
    act_before_step(monkeypatch, 0, lambda run: os.kill(os.getpid(), number))
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as stopped:
        train(config, tmp_path)
    assert stopped.value.code == 128 + number
    assert "Stopped after step 2" in caplog.text
    assert signal.getsignal(number) is before
    assert (tmp_path / "checkpoint-00000002.safetensors").exists()  # the signal is read one step later
    assert not (tmp_path / "results.json").exists()
    monkeypatch.undo()
    train(config, tmp_path)
    assert_same_training(finished, tmp_path)


def test_a_checkpoint_of_other_versions_is_resumed(
    config: Path, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "checkpoint-00000006.safetensors"
    with safe_open(finished / name, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
    assert state["versions"] == versions() | {"mixed_precision": "no"}
    state["versions"] |= {"numpy": "1.0", "mixed_precision": "bf16"}
    del state["corpus"]["held_out_ids"]  # of an earlier version of this package
    save_file(load_file(finished / name), tmp_path / name, {"state": json.dumps(state)})
    train(config, tmp_path)
    assert_same_training(finished, tmp_path)
    assert caplog.text.count("numpy 1.0, now ") == 1
    assert "mixed_precision bf16, now no" in caplog.text


def test_a_finished_run_is_not_changed(config: Path, finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with caplog.at_level(logging.INFO):
        train(config, finished)
    assert "nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_other_settings_are_errors_before_the_corpus_is_loaded(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: DataArguments) -> None:
        raise AssertionError("The corpus was loaded.")

    monkeypatch.setattr("training.pretrain.load_data", fail)
    with pytest.raises(SystemExit, match=r"^error: .*learning_rate: previously 0.05, now 0.01"):
        train(config, finished, "--learning_rate", "0.01")
    shutil.copy(finished / "checkpoint-00000006.safetensors", tmp_path)
    with pytest.raises(SystemExit, match=r"^error: .*00000006.safetensors .*seed: previously 0, now 1"):
        train(config, tmp_path, "--seed", "1")


def test_a_folder_with_a_model_of_another_run_is_not_overwritten(config: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(SystemExit, match="contains model"):
        train(config, tmp_path)


def test_a_run_that_cannot_start_leaves_no_folder(config: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: There is no file"):
        train(config, tmp_path / "new", "--corpus=missing.txt")
    assert not (tmp_path / "new").exists()


def test_another_corpus_is_an_error(config: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "checkpoint-00000006.safetensors", tmp_path)
    corpus = config.with_name("words.txt")
    content = corpus.read_text()
    corpus.write_text(content + "\nbaa na")
    try:
        with pytest.raises(SystemExit, match=r"^error: .*sources of the corpus: previously .*, now "):
            train(config, tmp_path)
    finally:
        corpus.write_text(content)


def test_data_can_be_prepared_on_a_machine_that_cannot_train(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("training.pretrain.Pretraining.__init__", None)
    monkeypatch.setattr("training.tracking.find_spec", lambda name: None)  # no tracker is installed
    train(config, tmp_path, "--prepare_only", "--mixed_precision=fp16", "--tracker=wandb")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_becomes_the_model_of_its_run(finished: Path, tmp_path: Path) -> None:
    export(finished, tmp_path / "newest")
    exported = {path.name: path for path in (tmp_path / "newest").iterdir()}
    assert exported.keys() == {path.name for path in (finished / "model").iterdir()}
    for name in ("config.json", "model.safetensors", "modeling_aogpt.py", "tokenizer.json"):
        assert exported[name].read_bytes() == (finished / "model" / name).read_bytes(), name
    assert AutoTokenizer.from_pretrained(tmp_path / "newest").model_max_length == 8
    for weights, prefix in (("ema", "average"), ("live", "weights")):
        checkpoint = finished / "checkpoint-00000006.safetensors"
        export(checkpoint, tmp_path / weights, f"--weights={weights}")
        model, state = AOGPTForAnyOrderLM.from_pretrained(tmp_path / weights), load_file(checkpoint)
        for name, weight in model.named_parameters():
            assert torch.equal(weight, state[f"{prefix}.{name}"]), name


def export(checkpoint: Path, out: Path, *options: str) -> None:
    export_checkpoint([str(checkpoint), str(out), *options])


EXTENSIBLE = ("--learning_rate_schedule=warmup_stable_decay", "--decay_steps=2", "--num_samples=0")


def test_the_checkpoint_before_the_decay_is_kept(config: Path, tmp_path: Path) -> None:
    train(config, tmp_path, *EXTENSIBLE, "--save_total_limit=1", "--save_steps=1")
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [6, 8]


def test_an_extended_run_is_that_of_the_final_length_bit_for_bit(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(config, tmp_path / "whole", *EXTENSIBLE)
    train(config, tmp_path / "extended", *EXTENSIBLE, "--max_steps=6")
    assert results(tmp_path / "extended")["steps"] == 6
    train(config, tmp_path / "extended", *EXTENSIBLE)
    assert "Resuming at step 4. Later checkpoints cannot be used: checkpoint-00000006" in caplog.text
    for name, tensor in final_state(tmp_path / "whole").items():
        assert torch.equal(final_state(tmp_path / "extended")[name], tensor), name
    assert results(tmp_path / "extended")["steps"] == STEPS


def test_a_finished_run_without_checkpoints_is_not_started_again(config: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "results.json", tmp_path)
    with pytest.raises(SystemExit, match="max_steps=8, but has no checkpoint"):
        train(config, tmp_path, "--max_steps=9")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_an_extended_run_is_not_finished_while_it_is_published(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("as if killed")

    train(config, tmp_path, *EXTENSIBLE, "--max_steps=6")
    monkeypatch.setattr("training.pretrain.Pretraining.write_report", fail)
    with pytest.raises(SystemExit, match="as if killed"):
        train(config, tmp_path, *EXTENSIBLE)
    assert not (tmp_path / "results.json").exists()


def test_a_shortened_run_publishes_its_own_last_step(config: Path, tmp_path: Path) -> None:
    train(config, tmp_path / "long", *EXTENSIBLE, "--save_steps=1", "--save_total_limit=9")
    for name in ("results.json", "checkpoint-00000008.safetensors"):  # as after a stop at step 7
        (tmp_path / "long" / name).unlink()
    shutil.rmtree(tmp_path / "long" / "model")
    train(config, tmp_path / "long", *EXTENSIBLE, "--max_steps=5")
    train(config, tmp_path / "short", *EXTENSIBLE, "--max_steps=5")
    published, expected = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("long", "short"))
    assert all(torch.equal(published[name], tensor) for name, tensor in expected.items())


def test_a_finished_run_cannot_be_shortened(config: Path, tmp_path: Path) -> None:
    """Its later checkpoints would not belong to the new model."""
    train(config, tmp_path, *EXTENSIBLE)
    with pytest.raises(SystemExit, match="shortened to 6"):
        train(config, tmp_path, *EXTENSIBLE, "--max_steps=6")


def test_a_run_that_was_stopped_before_an_evaluation_makes_it_later(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are written before evaluations, which may take longer than a scheduler waits."""

    def fail(run: Pretraining) -> None:
        raise OSError("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(Pretraining, "evaluate", fail)
        with pytest.raises(SystemExit, match="as if killed"):
            train(config, tmp_path, "--save_steps=4")
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [4]
    train(config, tmp_path, "--save_steps=4")
    assert_same_training(finished, tmp_path)


def test_a_tokenizer_that_cannot_be_used_is_an_error_before_the_corpus_is_read(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.pretrain.load_data", lambda arguments: pytest.fail("the corpus was read"))
    with pytest.raises(SystemExit, match="`start_token_id` must be an id of the"):
        train(config, tmp_path, f"--tokenizer={finished / 'tokenizer'}", "--start_token_id=99999")


@pytest.mark.parametrize("make", [lambda: with_start(llama), word_piece])
def test_the_tokenizer_of_a_new_model_adds_no_token_that_training_lacks(
    make: Callable, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make().save_pretrained(tmp_path / "given")
    text, options = "the cat <|mask|> sat", (f"--tokenizer={tmp_path / 'given'}", "--max_steps=1", "--warmup_steps=0")
    train(config, tmp_path / "run", *options, "--start_token_id=null", "--sequence_length=32", "--num_samples=0")
    assert "The trained model's tokenizer adds none." in caplog.text
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    ids = tokenizer(text).input_ids
    assert ids == load_tokenizer(tmp_path / "given")(text, add_special_tokens=False).input_ids
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "run" / "model")
    assert model.encode_text(text, tokenizer)[0].tolist() == ids


def test_a_start_token_of_a_new_model_is_still_added(config: Path, tmp_path: Path) -> None:
    with_start(llama).save_pretrained(tmp_path / "given")
    options = (f"--tokenizer={tmp_path / 'given'}", "--max_steps=1", "--warmup_steps=0", "--sequence_length=32")
    train(config, tmp_path / "run", *options, "--start_token_id=1", "--num_samples=0")
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("the").input_ids[0] == 1


def test_a_run_with_a_cosine_cannot_be_extended(config: Path, finished: Path) -> None:
    with pytest.raises(SystemExit, match=r"`max_steps=9`: .*max_steps=8.* up to step 3"):
        train(config, finished, "--max_steps=9")


def test_a_resumed_run_may_save_and_evaluate_at_other_steps(config: Path, finished: Path, tmp_path: Path) -> None:
    name = "checkpoint-00000006.safetensors"
    shutil.copy(finished / name, tmp_path)
    train(config, tmp_path, "--save_steps=1", "--save_total_limit=3", "--logging_steps=1", "--eval_steps=7")
    for key, tensor in final_state(finished).items():
        assert torch.equal(final_state(tmp_path)[key], tensor)
    assert sorted(path.name[-13] for path in tmp_path.glob("checkpoint-*")) == ["6", "7", "8"]
    assert results(tmp_path)["loss_curve"]["loss"] == losses(finished).tolist()
    assert [step for step, *_ in scores(tmp_path)] == [4, 7, 8]


def test_a_resumed_run_removes_checkpoints_that_a_kill_has_left(config: Path, finished: Path, tmp_path: Path) -> None:
    for path in checkpoints_in(finished):
        shutil.copy(path, tmp_path)
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [6, 8]
    train(config, tmp_path, "--save_total_limit=1")
    assert [step_of(path) for path in checkpoints_in(tmp_path)] == [8]


def test_passes_and_evaluations_affect_only_rounding(config: Path, finished: Path, tmp_path: Path) -> None:
    options = ("--per_device_batch_size=4", "--activation_checkpointing=full", "--eval_steps=3", "--eval_batch_size=5")
    train(config, tmp_path, *options, "--dataloader_num_workers=1")
    torch.testing.assert_close(losses(tmp_path), losses(finished), rtol=1e-3, atol=0)
    assert [step for step, *_ in scores(tmp_path)] == [3, 6, 8]
    assert scores(tmp_path)[-1] == pytest.approx(scores(finished)[-1], rel=1e-3)


def test_the_loss_is_the_mean_over_the_labels_of_all_passes(config: Path, tmp_path: Path) -> None:
    """With `context_first`, the passes of a step have different numbers of labels."""
    train(config, tmp_path / "one", "--orders=context_first")
    train(config, tmp_path / "three", "--orders=context_first", "--per_device_batch_size=4")
    expected, state = final_state(tmp_path / "one"), final_state(tmp_path / "three")
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=2e-4, msg=name)


def test_a_compiled_model_has_the_same_losses(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = modeling_aogpt.differentiate_chunk
    monkeypatch.setattr(modeling_aogpt, "differentiate_chunk", chunk)  # restored after the test
    counters.clear()
    train(config, tmp_path, "--dynamo_backend=eager")
    assert counters["stats"]["unique_graphs"] > 0
    assert modeling_aogpt.differentiate_chunk is not chunk
    torch.testing.assert_close(losses(tmp_path), losses(finished), rtol=1e-4, atol=0)
    assert final_state(tmp_path).keys() == final_state(finished).keys()


def test_losses_and_evaluations_are_sent_to_the_tracker(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    log = Accelerator.log
    monkeypatch.setattr(
        Accelerator, "log", lambda self, values, step: (logged.append((step, values)), log(self, values, step))[1]
    )
    train(config, tmp_path, "--save_steps=8")  # so that the losses of steps 2 and 3 are read together
    losses_logged = [(step, values["train/loss"]) for step, values in logged if "train/loss" in values]
    curve = results(finished)["loss_curve"]
    assert losses_logged == list(zip(curve["step"], curve["loss"], strict=True))
    for step, values in logged:
        if "train/loss" in values:
            assert 0 < values["train/gradient_norm"] < math.inf
            rate = 0.005 + 0.045 * (1 + math.cos(math.pi * (step - 3) / 6)) / 2  # step 3 is the first after the warmup
            assert values["train/learning_rate"] == pytest.approx(rate)
    scores_logged = [(step, *values.values()) for step, values in logged if "eval/any_order" in values]
    assert scores_logged == scores(finished)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_gradient_norms_are_logged_for_their_own_steps(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an evaluation, the results of two steps are read together. Saving every step reads each one alone."""
    norms: dict[str, dict[int, float]] = {"1": {}, "8": {}}
    for save_steps, of_run in norms.items():

        def record(self: Accelerator, values: dict[str, float], step: int, of_run: dict[int, float] = of_run) -> None:
            if "train/gradient_norm" in values:
                of_run[step] = values["train/gradient_norm"]

        monkeypatch.setattr(Accelerator, "log", record)
        train(config, tmp_path / save_steps, f"--save_steps={save_steps}", "--logging_steps=1")
    assert norms["1"] == norms["8"]
    assert list(norms["1"]) == list(range(1, STEPS + 1))


def test_mixed_precision_and_evaluation_of_some_rows(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)  # emulated if not supported
    train(config, tmp_path, "--mixed_precision=bf16", "--eval_sequences=5")
    torch.testing.assert_close(losses(tmp_path), losses(finished), rtol=0.1, atol=0)
    assert not torch.equal(losses(tmp_path), losses(finished))
    assert all(tensor.dtype == torch.float32 for name, tensor in final_state(tmp_path).items() if name != "losses")
    assert results(tmp_path)["hardware"]["mixed_precision"] == "bf16"
    num_bytes = load_data(parse_arguments([str(config)])[1]).validation["num_bytes"]
    spread = [num_bytes[number * len(num_bytes) // 5] for number in range(5)]
    last = results(tmp_path)["evaluations"][-1]
    assert (last["sequences"], last["bytes"]) == (5, sum(spread))


def make_loss_infinite(run: Pretraining) -> None:
    """Add a constant to the loss, which does not change its gradient."""
    run.objective.register_forward_hook(lambda module, inputs, loss: loss + math.inf)


def make_gradient_infinite(run: Pretraining) -> None:
    run.model.lm_head.bias.register_hook(lambda gradient: gradient * math.inf)


@pytest.mark.parametrize("make_infinite", [make_loss_infinite, make_gradient_infinite])
def test_a_diverged_run_stops_and_keeps_its_checkpoint(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_infinite: Callable[[Pretraining], None]
) -> None:
    act_before_step(monkeypatch, 5, make_infinite)
    with pytest.raises(SystemExit, match=r"(?s)^error: .* at step 5, .* samples 60 to 71"):
        train(config, tmp_path, "--save_steps", "1")
    checkpoint = load_file(tmp_path / "checkpoint-00000005.safetensors")
    assert not (tmp_path / "checkpoint-00000006.safetensors").exists()
    assert all(tensor.isfinite().all() for tensor in checkpoint.values())


def test_a_diverged_run_writes_no_later_checkpoint(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of step 4 are updated before its loss is read."""
    act_before_step(monkeypatch, 3, make_gradient_infinite)
    with pytest.raises(SystemExit, match="at step 3, "):
        train(config, tmp_path, "--save_steps=5", "--eval_steps=5")
    assert list(tmp_path.glob("checkpoint-*")) == []


class LossScaler:
    """Substitute for the scaler of the loss in fp16. It counts passes by doubling its scale."""

    def __init__(self) -> None:
        self.value = 1

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        self.value *= 2
        return loss

    def state_dict(self) -> dict[str, int]:
        return {"scale": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["scale"]


def test_runs_in_fp16_continue_after_infinite_gradients_and_resume_the_scale(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scaler decreases the scale after an infinite gradient."""
    scalers, resume, train_run = [], Pretraining._resume, Pretraining.train

    def add_scaler(run: Pretraining) -> None:
        if run.accelerator.scaler is None:
            run.accelerator.scaler = LossScaler()
            scalers.append(run.accelerator.scaler)

    monkeypatch.setattr(Pretraining, "_resume", lambda run, checkpoint: add_scaler(run) or resume(run, checkpoint))
    monkeypatch.setattr(Pretraining, "train", lambda run: add_scaler(run) or train_run(run))
    stop_signals = {0: signal.SIGTERM}  # it is read after the second step
    monkeypatch.setattr(StepStatus, "read", lambda status: (1.0, math.inf, stop_signals.get(status.step, 0)))
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        train(config, tmp_path)
    train(config, tmp_path)
    assert [scaler.value for scaler in scalers] == [2**2, 2**STEPS]


def test_usage_is_that_of_the_steps_since_the_last_log() -> None:
    run = SimpleNamespace(
        training=SimpleNamespace(batch_size=5, lora_rank=0),
        settings={"sequence_length": 10},
        data=SimpleNamespace(mean_length=10),
        progress=TrainingProgress(step=30, train_seconds=9.0),
        accelerator=SimpleNamespace(device=torch.device("cpu"), num_processes=2),
        model=SimpleNamespace(config=AOGPTConfig()),
        peak_flops=1e12,
    )
    since = TrainingProgress(step=10, train_seconds=5.0)
    usage = Pretraining.usage(run, since)
    assert usage["tokens_per_second"] == 20 * 5 * 10 / 4
    assert usage["mfu"] == pytest.approx(20 * 5 * 10 * flops_per_token(run.model.config, 10) / 1e12 / 8)
    run.peak_flops = None
    assert Pretraining.usage(run)["tokens_per_second"] == pytest.approx(30 * 5 * 10 / 9)
    assert "mfu" not in Pretraining.usage(run)


@pytest.mark.parametrize(
    ("objective", "target_injection"),
    [("any_order", "adaln"), ("masked_diffusion", "none"), ("score_entropy", "sigma")],
)
def test_an_encoder_is_trained_and_resumed_bit_for_bit(
    config: Path, tmp_path: Path, objective: str, target_injection: str
) -> None:
    options = ("--architecture=encoder", f"--objective={objective}", f"--target_injection={target_injection}")
    train(config, tmp_path / "run", *options)
    evaluations = results(tmp_path / "run")["evaluations"]
    assert evaluations[-1]["any_order"] < evaluations[0]["any_order"] - 0.1
    assert "left_to_right" not in evaluations[-1]
    name = "checkpoint-00000006.safetensors"
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "run" / name, tmp_path / "again")
    train(config, tmp_path / "again", *options, "--per_device_batch_size=12")
    for key, tensor in final_state(tmp_path / "run").items():
        assert torch.equal(final_state(tmp_path / "again")[key], tensor), key
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model").config.target_injection == target_injection


@pytest.fixture
def tuning(config: Path, finished: Path) -> Path:
    """Return the YAML file of a run that starts from another run."""
    lines = [line for line in config.read_text().splitlines() if not line.startswith("vocab_size")]
    path = config.with_name("tuning.yaml")
    path.write_text("\n".join([*lines, f"init_from: {finished}"]))
    return path


def test_a_resumed_run_keeps_the_identity_of_its_initial_weights(tuning: Path, finished: Path, tmp_path: Path) -> None:
    """The folder `init_from` may have changed since the start of the run."""
    shutil.copytree(finished / "model", tmp_path / "initial")
    train(tuning, tmp_path / "run", f"--init_from={tmp_path / 'initial'}")
    identity = results(tmp_path / "run")["initial_weights"]
    for name in ("results.json", "checkpoint-00000008.safetensors"):
        (tmp_path / "run" / name).unlink()
    file = tmp_path / "initial" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    train(tuning, tmp_path / "run", f"--init_from={tmp_path / 'initial'}")
    assert results(tmp_path / "run")["initial_weights"] == identity


def test_fine_tuning_starts_from_the_averages_of_another_run(tuning: Path, finished: Path, tmp_path: Path) -> None:
    train(tuning, tmp_path, "--final_left_to_right_fraction=0.5", "--learning_rate=0.001")
    last, first = results(finished)["evaluations"][-1], results(tmp_path)["evaluations"][-1]
    assert first["any_order"] < last["any_order"] + 0.05  # about the last result of the other run
    assert results(tmp_path)["arguments"]["tokenizer"] == str(finished / "model")
    assert losses(tmp_path)[0] < losses(finished)[0] - 0.5


def test_fine_tuning_needs_the_tokenizer_of_the_initial_model(
    tuning: Path, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("same", "other"):
        shutil.copytree(finished / "model", tmp_path / name)
    path = tmp_path / "other" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=r"`tokenizer` \(.*other\)"):
        train(tuning, tmp_path / "run", f"--tokenizer={tmp_path / 'other'}")
    train(tuning, tmp_path / "run", f"--tokenizer={tmp_path / 'same'}", "--max_steps=3", "--vocab_size=300")
    assert caplog.text.count("`vocab_size` has no effect") == 1


def test_resumed_fine_tuning_does_not_load_the_initial_weights(tuning: Path, finished: Path, tmp_path: Path) -> None:
    source, options = tmp_path / "source", (f"--init_from={tmp_path / 'source'}", "--save_total_limit=9")
    shutil.copytree(finished / "model", source)
    (source / "generation_config.json").write_text(json.dumps({"num_steps": 3}))
    train(tuning, tmp_path / "run", *options)
    (source / "model.safetensors").unlink()
    (source / "generation_config.json").unlink()
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "run" / "checkpoint-00000003.safetensors", tmp_path / "again")
    train(tuning, tmp_path / "again", *options)
    assert_same_training(tmp_path / "run", tmp_path / "again")
    for name in ("samples/samples-00000008.txt", "model/generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert json.loads((tmp_path / "again" / "model" / "generation_config.json").read_text())["num_steps"] == 3


def test_models_trained_left_to_right_generate_from_left_to_right(
    tuning: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training in other orders removes this default again, but keeps `max_gap_length` with a warning."""
    options = ("--max_steps=1", "--warmup_steps=0", "--num_samples=0", "--eval_sequences=1")
    expected = {"gaps_last": "left_to_right", "random": None, "left_to_right": "left_to_right"}
    for orders, default in expected.items():
        train(tuning, tmp_path / orders, *options, f"--orders={orders}")
        model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / orders / "model")
        assert model.generation_config.order == default
        output = model.generate(max_length=8, return_dict_in_generate=True, generator=torch.Generator().manual_seed(0))
        assert (output.orders == torch.arange(8)).all() == (default is not None)
        options = (*options[:4], f"--init_from={tmp_path / orders / 'model'}")
    train(tuning, tmp_path / "ends", *options, "--orders=gaps_last", "--max_gap_length=3")
    options = (*options[:4], f"--init_from={tmp_path / 'ends' / 'model'}")
    assert "keeps `max_gap_length`" not in caplog.text
    train(tuning, tmp_path / "strided", *options, "--orders=left_to_right", "--stride=2")
    assert "keeps `max_gap_length` (3)" in caplog.text
    train(tuning, tmp_path / "longer", *options, "--orders=gaps_last", "--max_gap_length=4")
    for name, longest in (("ends", 3), ("strided", 3), ("longer", 4)):
        config = AutoConfig.from_pretrained(tmp_path / name / "model", trust_remote_code=True)
        assert config.max_gap_length == longest
    assert AOGPTForAnyOrderLM.from_pretrained(tmp_path / "strided" / "model").generation_config.order is None
