# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training with the Trainer of Transformers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM, DataCollatorForAnyOrderLM
from tests.references import random_model

ROWS = [{"input_ids": [3, 1, 4, 1, 5, 9, 2, 6][: 4 + index % 5], "order_seed": index} for index in range(64)]
COLLATOR = DataCollatorForAnyOrderLM(pad_token_id=0)


def train(
    model: AOGPTForAnyOrderLM,
    folder: Path,
    collator: Callable = COLLATOR,
    rows: list[dict] = ROWS,
    **arguments: object,
) -> list[float]:
    """Train a model and return the loss of each step."""
    arguments = TrainingArguments(
        folder,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        **arguments,
    )
    trainer = Trainer(model.float(), arguments, train_dataset=rows, data_collator=collator)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainer_learns_sequences_in_every_order(tmp_path: Path) -> None:
    model = random_model(initializer_range=0.1)
    losses = train(model, tmp_path, max_steps=80, per_device_train_batch_size=16, learning_rate=2e-2)
    assert losses[-1] < 0.3 < 2 < losses[0]
    filled = model.generate(torch.tensor([[3, 11, 4, 11, 5, 11, 2, 11]]), do_sample=False)
    assert filled.tolist() == [[3, 1, 4, 1, 5, 9, 2, 6]]


def test_gradient_accumulation_gives_the_losses_of_one_batch(tmp_path: Path) -> None:
    """The passes have different numbers of labels, and the Trainer divides by their sum."""
    one = train(random_model(), tmp_path, max_steps=3, per_device_train_batch_size=16)
    four = train(random_model(), tmp_path, max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    torch.testing.assert_close(torch.tensor(four), torch.tensor(one), rtol=1e-3, atol=1e-3)


def test_start_tokens_do_not_count_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With accumulation, the loss is that of the texts without their start tokens."""
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.modeling_aogpt.logger.warning_once", warnings.append)
    start = [{"input_ids": [10] * (index % 3 > 0) + row["input_ids"]} for index, row in enumerate(ROWS)]
    losses, options = [], {"max_steps": 2, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 4}
    for rows, given in ((ROWS, None), (start, 10), (start, None)):
        collator = DataCollatorForAnyOrderLM("left_to_right", pad_token_id=0, start_token_id=given)
        losses.append(train(random_model(start_token_id=10), tmp_path, collator, rows, **options))
        assert len(warnings) == (rows is start and given is None)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)
    assert losses[2][0] < 0.95 * losses[0][0]
    causal = AOGPTForCausalLM(random_model(start_token_id=10).config).train()
    ids, mask = torch.tensor([[0, 10, 3, 1], [10, 3, 1, 4]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    for labels in (ids.masked_fill(ids == 10, -100), ids):  # the label of the first column is never predicted
        warnings.clear()
        causal._has_checked_count = False
        causal(ids, mask, labels=labels, num_items_in_batch=6)
        assert len(warnings) == (labels is ids)


def test_the_trainer_needs_no_logits(tmp_path: Path) -> None:
    def collate(features: list[dict]) -> dict:
        return COLLATOR(features) | {"skip_logits": True}

    expected = train(random_model(), tmp_path, max_steps=3, per_device_train_batch_size=16)
    losses = train(random_model(), tmp_path, collate, max_steps=3, per_device_train_batch_size=16)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_label_smoothing_shifts_the_labels_of_the_causal_class(tmp_path: Path) -> None:
    config = AOGPTConfig(vocab_size=11, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    model, ids = AOGPTForCausalLM(config).eval(), torch.tensor(ROWS[4]["input_ids"])
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.1, report_to=[], use_cpu=True, disable_tqdm=True)
    loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids[None], "labels": ids[None]})
    expected = torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_lora_trains_only_its_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = random_model(initializer_range=0.1)
    before = {name: weight.clone().float() for name, weight in model.named_parameters()}
    adapters = peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])
    tuned = peft.get_peft_model(model.float(), adapters)
    losses = train(tuned, tmp_path / "run", max_steps=60, per_device_train_batch_size=16, learning_rate=2e-2)
    assert losses[-1] < losses[0] - 0.5
    frozen = {name.replace(".base_layer", ""): weight for name, weight in model.named_parameters()}
    assert all(torch.equal(frozen[name], weight) for name, weight in before.items())

    tuned.save_pretrained(tmp_path / "adapters")
    ids, orders = torch.tensor([ROWS[4]["input_ids"]]), torch.tensor([[3, 0, 6, 1, 7, 2, 5, 4]])
    expected = tuned(ids, orders=orders).logits
    again = peft.PeftModel.from_pretrained(random_model(initializer_range=0.1).float(), tmp_path / "adapters").eval()
    torch.testing.assert_close(again(ids, orders=orders).logits, expected)
    merged = again.merge_and_unload()
    assert isinstance(merged, AOGPTForAnyOrderLM)
    torch.testing.assert_close(merged(ids, orders=orders).logits, expected, rtol=1e-4, atol=1e-4)


def test_labels_without_orders_are_warned_of_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.modeling_aogpt.logger.warning_once", warnings.append)
    model, ids = random_model().train(), torch.tensor([ROWS[4]["input_ids"]])
    model(**COLLATOR([ROWS[4]]))
    model.eval()(ids, labels=ids)
    assert not warnings
    model.train()(ids, labels=ids)
    assert ["DataCollatorForAnyOrderLM" in warning for warning in warnings] == [True]


@pytest.fixture
def train_with_trl(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Callable:
    """Return a function that trains a model with a trainer of TRL, and returns the losses."""
    pytest.importorskip("trl", minversion="1.16")

    def train(trainer: type, arguments: type, model: PreTrainedModel, rows: list[dict], **options: object) -> list:
        plain = {"bf16": False, "gradient_checkpointing": False, "use_cpu": True, "report_to": []}
        settings = arguments(tmp_path, max_steps=9, logging_steps=1, learning_rate=1e-2, disable_tqdm=True, **plain)
        rows = Dataset.from_list(rows)
        tuning = trainer(model, args=settings, train_dataset=rows, processing_class=tiny_tokenizer, **options)
        tuning.train()
        return [entry for entry in tuning.state.log_history if "loss" in entry]

    return train


@pytest.mark.parametrize("in_any_order", [False, True])
def test_the_sft_trainer_of_trl_predicts_completions(in_any_order: bool, folder: str, train_with_trl: Callable) -> None:
    trl = pytest.importorskip("trl")
    ids, labels = torch.tensor([[0, 1, 2, 3, 13]]), torch.tensor([[-100, -100, 2, 3, 13]])  # with end-of-text
    orders = torch.arange(5)[None] if not in_any_order else torch.tensor([[0, 1, 4, 3, 2]])
    model = AutoModel.from_pretrained(folder)
    expected = model(ids, orders=orders, labels=labels).loss.item()
    options = {}

    class AnyOrderSFTTrainer(trl.SFTTrainer):
        compute_loss = Trainer.compute_loss

    if in_any_order:
        collator = DataCollatorForAnyOrderLM(orders="context_first", pad_token_id=14)
        options = {"data_collator": lambda rows: collator(rows) | {"orders": orders.repeat(len(rows), 1)}}
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = AnyOrderSFTTrainer if in_any_order else trl.SFTTrainer
    rows = [{"prompt": "ab", "completion": "cd"}] * 8
    losses = [entry["loss"] for entry in train_with_trl(trainer, trl.SFTConfig, model, rows, **options)]
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0] / 2


def test_the_dpo_trainer_of_trl_compares_log_probabilities(folder: str, train_with_trl: Callable) -> None:
    trl = pytest.importorskip("trl")
    model = AutoModelForCausalLM.from_pretrained(folder)
    log_probs = model(torch.tensor([[0, 1, 2, 3, 13]])).logits.log_softmax(dim=-1)[0]
    expected = log_probs[[1, 2, 3], [2, 3, 13]].sum().item()
    rows = [{"prompt": "ab", "chosen": "cd", "rejected": "ef"}] * 8
    log = train_with_trl(trl.DPOTrainer, trl.DPOConfig, model, rows)
    assert log[0]["logps/chosen"] == pytest.approx(expected, rel=1e-4)
    assert log[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert log[-1]["rewards/margins"] > 1
