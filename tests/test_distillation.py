# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The distillation term, and runs that use it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn

from modeling_aogpt import AOGPTForAnyOrderLM
from tests.killed_runs import Trainer, find_differences, find_wrong_losses, run_with_kills
from tests.references import random_model
from tests.training_runs import losses, results, train, write_config
from training import objectives
from training.arguments import TrainingArguments
from training.draws import OrderDraws
from training.lora import add_lora
from training.model import create_model
from training.objectives import AnyOrderObjective

WEIGHT = 0.7


def make_batch(width: int = 6) -> dict[str, torch.Tensor]:
    """Return a batch with padding, with labels that exclude a context, and with sequences in two kinds of orders."""
    generator = torch.Generator().manual_seed(0)
    features = []
    for sample in range(8):
        ids = torch.randint(1, 11, (width - sample % 3,), generator=generator)
        labels = ids.clone()
        labels[: sample % 2] = -100
        features.append({"input_ids": ids, "labels": labels, "order_seed": sample})
    training = TrainingArguments(orders="context_first", left_to_right_fraction=0.5, distillation_weight=WEIGHT)
    return OrderDraws(training)(features)


def naive_loss(model: AOGPTForAnyOrderLM, source: AOGPTForAnyOrderLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss with all logits at once, token by token."""
    logits = [one(batch["input_ids"], batch["orders"]).logits for one in (model, source)]
    all_log_probs = logits[0].log_softmax(-1)
    logits = [one[..., : model.config.num_valid_tokens].log_softmax(-1) for one in logits]
    is_label = batch["labels"] != -100
    total = 0.0
    for row, column in is_label.nonzero().tolist():
        predicted, target = logits[0][row, column], logits[1][row, column].detach()
        total = total - all_log_probs[row, column, batch["labels"][row, column]]
        if batch["orders"][row].tolist() == sorted(batch["orders"][row].tolist()):
            total = total + WEIGHT * (target.exp() * (target - predicted)).sum()
    return total / is_label.sum()


def make_objective(model: AOGPTForAnyOrderLM, source: AOGPTForAnyOrderLM | None) -> AnyOrderObjective:
    objective = AnyOrderObjective(model)
    objective.distillation_weight, objective.source = WEIGHT, source
    return objective


def assert_same_gradients(actual: torch.Tensor, expected: torch.Tensor, model: nn.Module) -> None:
    torch.testing.assert_close(actual, expected)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    pairs = zip(*(torch.autograd.grad(value, parameters) for value in (actual, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("start_token_id", [None, 0])
@pytest.mark.parametrize("settings", [{}, {"vocab_size": 14, "num_valid_tokens": 11, "mask_token_id": 11}])
def test_loss_and_gradients_equal_the_definition(
    monkeypatch: pytest.MonkeyPatch, start_token_id: int | None, settings: dict[str, int]
) -> None:
    monkeypatch.setitem(objectives.LOGITS_PER_CHUNK, "cpu", 4 * 11 * 4)  # chunks of 4 positions
    model, source = (random_model(start_token_id=start_token_id, **settings) for _ in range(2))
    nn.init.normal_(source.lm_head.weight)
    source.requires_grad_(False)
    batch = make_batch()
    rows = batch["left_to_right_rows"]
    assert 0 < len(rows) < 8
    assert "attention_mask" in batch
    assert_same_gradients(make_objective(model, source)(**batch), naive_loss(model, source, batch), model)


def test_with_lora_the_source_is_the_model_without_adapters(tmp_path: Path) -> None:
    source, model = random_model(target_injection="adaln").requires_grad_(False), random_model(target_injection="adaln")
    add_lora(model, TrainingArguments(lora_rank=2, init_from=str(tmp_path)))
    model.double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.linspace(-0.3, 0.3, weight.numel()).view_as(weight))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    batch = make_batch()
    assert_same_gradients(make_objective(model, None)(**batch), naive_loss(model, source, batch), model)
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == trained


def test_a_batch_without_left_to_right_sequences_has_no_term() -> None:
    model, source = random_model(), random_model().requires_grad_(False)
    batch = make_batch() | {"left_to_right_rows": torch.tensor([], dtype=torch.long)}
    assert make_objective(model, source)(**batch) == AnyOrderObjective(model)(**batch)


# ------------------------------------------------------------------------------------------------------------ runs

MORE = ("--num_samples=0", "--tracker=none", "--warmup_steps=1", "--left_to_right_fraction=0.4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the YAML file of a run, and the folder of a model that was trained from left to right with it."""
    folder = tmp_path_factory.mktemp("source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        train(write_config(folder), folder / "run", "--orders=left_to_right", "--max_steps=30", *MORE)
    return folder / "config.yaml", str(folder / "run" / "model")


@pytest.fixture
def distill(trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    config, model = trained
    monkeypatch.setenv("HF_DATASETS_CACHE", str(config.with_name("cache")))

    def run(out: Path, *options: str) -> Path:
        train(config, out, f"--init_from={model}", *MORE, *options)
        return out

    return run


@pytest.mark.parametrize("packing", ["documents", "packed"])
def test_passes_affect_only_rounding(distill: Callable[..., Path], tmp_path: Path, packing: str) -> None:
    options = ("--distillation_weight=3", f"--packing={packing}")
    whole = distill(tmp_path / "whole", *options)
    passes = distill(tmp_path / "passes", *options, "--per_device_batch_size=3")
    torch.testing.assert_close(losses(passes), losses(whole), rtol=1e-4, atol=0)
    plain = distill(tmp_path / "plain", f"--packing={packing}")
    assert losses(whole)[0] == pytest.approx(losses(plain)[0].item(), abs=1e-5)  # the model is still its source
    assert losses(whole)[-1] != pytest.approx(losses(plain)[-1].item(), abs=1e-3)


@pytest.mark.parametrize("lora", [(), ("--lora_rank=2",)])
def test_killed_run_ends_like_an_uninterrupted_one(
    trained: tuple[Path, str], distill: Callable[..., Path], tmp_path: Path, lora: tuple[str, ...]
) -> None:
    config, model = trained
    options = (f"--init_from={model}", "--distillation_weight=3", "--max_steps=20", "--eval_steps=20", *MORE, *lora)
    trainer = Trainer([str(config), *options])
    uninterrupted = trainer.attempt(tmp_path / "uninterrupted")
    attempts = run_with_kills(trainer, tmp_path / "killed", kills=2, num_steps=20, seed=0)
    assert [attempt.killed for attempt in attempts] == [True, True, False]
    assert find_wrong_losses(uninterrupted.losses, attempts) == []
    assert find_differences(tmp_path / "uninterrupted", tmp_path / "killed") == []


def test_the_left_to_right_predictions_stay_near_those_of_the_source(
    trained: tuple[Path, str], distill: Callable[..., Path], tmp_path: Path
) -> None:
    source = results(Path(trained[1]).parent)["evaluations"][-1]["left_to_right"]
    plain, distilled = (
        results(distill(tmp_path / name, *options))["evaluations"][-1]["left_to_right"]
        for name, options in (("plain", ()), ("distilled", ("--distillation_weight=10",)))
    )
    assert abs(distilled - source) < abs(plain - source) / 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--left_to_right_fraction=0",), "left_to_right_fraction"),
        (("--orders=gaps_last", "--left_to_right_fraction=0"), "left_to_right_fraction"),
        (("--init_from=null",), "init_from"),
    ],
)
def test_settings_that_cannot_be_used(
    distill: Callable[..., Path], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match=f"`distillation_weight` .*{message}"):
        distill(tmp_path / "run", "--distillation_weight=1", *options)


def test_sharded_weights_are_refused() -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"`distillation_weight` .*FSDP2"):
        create_model(None, TrainingArguments(distillation_weight=1.0), accelerator)
