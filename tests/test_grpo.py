# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training with rewards: gradients against enumeration, resumed runs, several processes, and a task that is learned."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from common.models import save_model
from common.tokenizers import train_tokenizer, vocabulary_arguments
from model_cards.publish import main as publish
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.generation import AnyOrderGenerationOutput
from modeling_aogpt.infill import encode_with_masks
from modeling_aogpt.tokenization import add_mask_token
from tests.killed_runs import Trainer, find_differences, find_wrong_losses, run_with_kills
from tests.references import random_model, seeded
from tests.test_trajectories import gradients, reference
from tests.tokenizers_of_all_kinds import llama
from tests.training_runs import reset_accelerator
from training.grpo import GRPOArguments, PolicyObjective, PolicyTraining, compute_advantages
from training.pretrain import main

MASK = "<|mask|>"


def letters(prompts: list[str], completions: list[str], wanted: list[str], **_: object) -> list[float]:
    """Return the fraction of the four generated tokens that are wanted letters, which a column of the data has."""
    assert all(prompt[0] == text[0] for prompt, text in zip(prompts, completions, strict=True))
    return [sum(map(letters.count, text)) / 4 for text, letters in zip(completions, wanted, strict=True)]


def write_config(folder: Path) -> Path:
    """Write a model, prompts and the YAML file of a run. Return the path of the YAML file."""
    tokenizer = train_tokenizer(["ab"], 257)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
    torch.manual_seed(0)
    model = AOGPTForAnyOrderLM(AOGPTConfig(**sizes, **vocabulary_arguments(tokenizer), target_embedding_size=4))
    save_model(model, tokenizer, folder / "initial")
    texts = [f"{first}{MASK * 2}{second}{MASK * 2}" for first in "XYZ" for second in "0123456789"]
    prompts = [{"prompt": text, "wanted": "abcdefghijklmnopqrstuvwxyz"} for text in texts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (folder / "grpo.yaml").write_text(
        f"""
corpus: {folder / "prompts.jsonl"}
validation_fraction: 0.2
init_from: {folder / "initial"}
reward: tests.test_grpo:letters
text_column: prompt
num_steps: 3
max_steps: 6
batch_size: 16
per_device_batch_size: 8
group_size: 4
num_updates: 2
learning_rate: 0.03
warmup_steps: 0
save_steps: 2
eval_steps: 3
tracker: none
"""
    )
    return folder / "grpo.yaml"


def train(config: Path, out: Path, *options: str) -> list[dict]:
    """Train in this process. Return the log."""
    reset_accelerator()
    main([str(config), f"--output_dir={out}", *options], PolicyTraining)
    return read_log(out)


def read_log(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_expected_gradient_is_that_of_the_expected_reward() -> None:
    """Expectations are sums over all trajectories of two tokens in two steps, and over all groups of two of them."""
    model, initial = (random_model(vocab_size=3, max_position_embeddings=2, initializer_range=0.3) for _ in range(2))
    with torch.no_grad():
        for weight in initial.parameters():
            weight += 0.1 * torch.randn(weight.shape, dtype=weight.dtype, generator=seeded(1))
    output = model.generate(num_return_sequences=4000, num_steps=2, generator=seeded(), return_dict_in_generate=True)
    parts = [output.sequences, output.orders, output.unmasking_steps]
    parts = [part.contiguous() for part in torch.cat(parts, dim=1).unique(dim=0).split(2, dim=1)]
    assert len(parts[0]) == 9 * 2 * 3  # pairs of tokens, orders, and numbers of tokens in the first step
    rewards = torch.randn(54, generator=seeded(2), dtype=torch.float64)
    log_probs, initial_log_probs = (
        torch.stack([reference(one, *values) for values in zip(*parts, strict=True)]) for one in (model, initial)
    )
    is_one_by_one = parts[2][:, 0] != parts[2][:, 1]
    schedule = torch.where(is_one_by_one, 1 / 4, 1 / 8)  # each token is unmasked in the first step with probability 1/2
    probabilities = schedule * log_probs.sum(dim=1).exp()
    torch.testing.assert_close(probabilities.sum().item(), 1.0)
    kl = (log_probs - initial_log_probs).sum(dim=1)
    expected = gradients(model, (probabilities * (rewards - 0.3 * kl)).sum())

    pairs = torch.cartesian_prod(torch.arange(54), torch.arange(54)).flatten()
    settings = {"group_size": 2, "kl_weight": 0.3}
    probabilities, kl, log_probs = probabilities.detach(), kl.detach(), log_probs.detach()
    advantages = compute_advantages(rewards[pairs], kl[pairs], GRPOArguments(**settings, scale_rewards=False))
    of_pairs = probabilities[pairs].view(-1, 2).prod(dim=1).repeat_interleave(2) * 54**2
    trajectories = dict(zip(("sequences", "orders", "unmasking_steps"), (part[pairs] for part in parts), strict=True))
    loss = PolicyObjective(model)(log_probs[pairs], advantages * of_pairs, 0.2, **trajectories)
    for gradient, correct in zip(gradients(model, loss), expected, strict=True):
        torch.testing.assert_close(-gradient, correct, rtol=1e-8, atol=1e-12)


def test_advantages_and_clipping() -> None:
    rewards = torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1])
    scaled = compute_advantages(rewards, torch.zeros(8), GRPOArguments(group_size=4))
    torch.testing.assert_close(scaled, torch.tensor([-1.0, 1, 1, -1, 0, 0, 0, 0]) * 0.75**0.5, rtol=0, atol=1e-3)
    model = random_model(vocab_size=3, max_position_embeddings=2)
    output = model.generate(num_return_sequences=2, generator=seeded(), return_dict_in_generate=True)
    names = ("sequences", "orders", "unmasking_steps")
    arguments = output.token_logprobs - 1, torch.tensor([1.0, -1.0]), 0.2
    loss = PolicyObjective(model)(*arguments, **{name: output[name] for name in names})
    assert loss.item() == pytest.approx((-2 * 1.2 + 2 * torch.e) / 2)  # ratios of e; only the gain of the first is cut


def test_reward_rises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    out, options = tmp_path / "run", ["--max_steps=20", "--eval_steps=10", "--save_steps=20"]
    log = train(write_config(tmp_path), out, *options)
    assert [line["step"] for line in log] == list(range(1, 21))
    assert log[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert log[-1]["kl"] > 1
    assert log[0]["reward"] < 0.35
    assert log[-1]["reward"] > 0.8
    assert log[-1]["entropy"] < log[0]["entropy"]
    assert json.loads((out / "results.json").read_text())["evaluations"][-1]["reward"] > 0.8
    (written,) = re.findall(r"Written: .*\((.*)\)", caplog.text)
    assert all((out / name).exists() for name in written.split(", "))
    publish([str(out), "someone/model", f"--output_dir={tmp_path / 'hub'}"])
    card = (tmp_path / "hub" / "README.md").read_text()
    assert all(
        line in card for line in ("prompts.jsonl: ", "| reward | tests.test_grpo:letters |", "| group size | 4 |")
    )
    assert "| orders |" not in card


def test_reference_is_the_model_without_adapters(tmp_path: Path) -> None:
    log = train(write_config(tmp_path), tmp_path / "run", "--max_steps=8", "--lora_rank=2", "--learning_rate=0.1")
    assert log[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert abs(log[-1]["kl"]) > 0.01  # an estimate can be negative


@pytest.mark.parametrize("num_processes", [1, 2])
def test_killed_runs_end_like_an_uninterrupted_one(tmp_path: Path, num_processes: int) -> None:
    trainer = Trainer([str(write_config(tmp_path)), "--max_steps=8"], num_processes, PolicyTraining)
    uninterrupted = trainer.attempt(tmp_path / "uninterrupted")
    attempts = run_with_kills(trainer, tmp_path / "killed", 1, num_steps=7, seed=0)
    assert [attempt.killed for attempt in attempts] == [True, False]
    assert find_wrong_losses(uninterrupted.losses, attempts) == []
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == []
    assert read_log(tmp_path / "uninterrupted") == read_log(tmp_path / "killed")


def test_a_run_is_not_resumed_with_other_code_of_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    config, code, options = write_config(tmp_path), tmp_path / "my_reward.py", ("--max_steps=2", "--reward=my_reward:f")
    helper = tmp_path / "my_helper.py"
    helper.write_text("def g(count):\n    return [0] * count\n")
    code.write_text("from my_helper import g\n\n\ndef f(prompts, **_):\n    return g(len(prompts))\n")
    train(config, tmp_path / "run", *options)
    (tmp_path / "run/results.json").unlink()
    train(config, tmp_path / "run", *options)
    (tmp_path / "run/results.json").unlink()
    helper.write_text(helper.read_text().replace("[0]", "[1]"))
    with pytest.raises(SystemExit, match=r"other settings \(code of the reward"):
        train(config, tmp_path / "run", *options)


def test_two_processes_sample_the_same_completions(tmp_path: Path) -> None:
    config, logs, weights, rewards = str(write_config(tmp_path)), [], [], []
    for num_processes in (1, 2):
        out = tmp_path / f"run-{num_processes}"
        options = ["--max_steps=3", "--save_steps=3", "--eval_batch_size=2"]
        Trainer([config, *options], num_processes, PolicyTraining).attempt(out)
        logs.append(read_log(out))
        rewards.append([one["reward"] for one in json.loads((out / "results.json").read_text())["evaluations"]])
        weights.append(load_file(out / "model" / "model.safetensors"))
    assert rewards[0] == pytest.approx(rewards[1])
    for one, two in zip(*logs, strict=True):
        assert [one.pop(name) for name in ("completion", "reward")] == [
            two.pop(name) for name in ("completion", "reward")
        ]
        assert one == pytest.approx(two, rel=1e-3, abs=1e-5)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("stride", "order"), [("null", "left_to_right"), ("2", None)])
def test_strided_training_does_not_make_a_left_to_right_model(tmp_path: Path, stride: str, order: str | None) -> None:
    train(write_config(tmp_path), tmp_path / "run", "--order=left_to_right", f"--stride={stride}", "--max_steps=1")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "run" / "model")
    assert model.generation_config.order == order


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--init_from=null", "init_from"),
        ("--reward=tests.test_grpo:missing", "reward.*missing"),
        ("--reward=tests.test_grpo:read_log", "prompts, completions, wanted: .*Add `\\*\\*others`"),
        ("--unmasking=none", "unmasking"),
        ("--group_size=3", "group_size"),
        ("--max_new_tokens=3", "tokens"),
        ("--ema_decay=0.9", "ema_decay"),
        ("--num_samples=2", "num_samples.*cannot be used"),
        ("--streaming=true", "`streaming` cannot be used with rewards"),
        ("--text_column=other", "other"),
        ("--validation_fraction=1e-9", "validation_fraction.*validation_files"),
    ],
)
def test_wrong_settings(tmp_path: Path, option: str, message: str, capsys: pytest.CaptureFixture) -> None:
    config = write_config(tmp_path)
    with pytest.raises(SystemExit, match=message):
        train(config, tmp_path / "run", option)


@pytest.mark.parametrize("value", [None, float("nan"), "1"])
def test_a_reward_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    monkeypatch.setattr("tests.test_grpo.letters", lambda prompts, **_: [value, *[0.0] * (len(prompts) - 1)])
    with pytest.raises(ValueError, match=r"`reward` must .*number"):
        train(write_config(tmp_path), tmp_path / "run")


def test_a_reward_may_change_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pop(prompts: list[str], completions: list[str], wanted: list[list[str]], **_: object) -> list[int]:
        completions.clear()
        return [len(letters.pop()) * len(letters) for letters in wanted]

    monkeypatch.setattr("tests.test_grpo.letters", pop)
    config, file = write_config(tmp_path), tmp_path / "prompts.jsonl"
    rows = [json.loads(line) | {"wanted": ["a", "b"]} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train(config, tmp_path / "run", "--max_steps=1")[0]["reward"] == 1  # of all completions of a prompt


def test_values_that_json_changes_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[tuple] = []
    monkeypatch.setattr("training.grpo.logger.warning", lambda *values: warnings.append(values))
    config, file = write_config(tmp_path), tmp_path / "prompts.jsonl"
    rows = [json.loads(line) | {"day": "2024-01-01", "one": 1} for line in file.read_text().splitlines()]
    rows = [row | {"number": number % 2 or 2.5} for number, row in enumerate(rows)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(config, tmp_path / "run", "--max_steps=1")
    assert [values[1] for values in warnings] == ["day", "number"]  # 1 became 1.0


def test_completions_keep_their_first_space() -> None:
    tokenizer = add_mask_token(llama())
    given, ids = (encode_with_masks(text, tokenizer) for text in ("the", "the cat"))
    steps = torch.tensor([[-1] * len(given) + list(range(len(ids) - len(given)))])
    output = AnyOrderGenerationOutput(torch.tensor([ids]), steps, steps, steps)
    part = SimpleNamespace(tokenizer=tokenizer, device="cpu", generate=lambda *_, **__: output)
    run = SimpleNamespace(**dict.fromkeys(("data", "accelerator", "model", "generation"), part))
    run.averaged_weights, run.reward = nullcontext, lambda prompts, completions: [0.0]
    assert PolicyTraining.sample(run, [{"text": "the", "input_ids": given}], 1, 0)[1] == [" cat"]
