# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import perturb_vectors
from training.arguments import parse_arguments
from training.convert_gpt2 import convert, convert_model

EOS, LENGTH = 13, 12
INJECTIONS = ["adaln", "input", "shared", "per_layer"]


def random_gpt2(**settings: object) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2, "eos_token_id": EOS}
    ids = {"bos_token_id": EOS}
    model = GPT2LMHeadModel(GPT2Config(**(sizes | ids | {"initializer_range": 0.4} | settings))).eval()
    perturb_vectors(model)
    return model


@torch.no_grad()
@pytest.mark.parametrize("target_injection", INJECTIONS)
@pytest.mark.parametrize("settings", [{}, {"n_inner": 24, "activation_function": "relu"}])
def test_left_to_right_predictions_are_those_of_the_gpt2(target_injection: str, settings: dict) -> None:
    gpt2 = random_gpt2(**settings)
    model = convert_model(gpt2, target_injection)
    ids = torch.randint(16, (3, LENGTH))
    after_end_of_text = torch.cat((torch.full((3, 1), EOS), ids[:, :-1]), dim=1)
    expected = gpt2(after_end_of_text).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.double()(ids).logits, gpt2.double()(after_end_of_text).logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("target_injection", INJECTIONS)
def test_target_embeddings_are_trained_from_the_first_steps_on(target_injection: str) -> None:
    model = convert_model(random_gpt2(), target_injection)
    ids, orders = torch.randint(16, (4, LENGTH)), torch.stack([torch.randperm(LENGTH) for _ in range(4)])
    before = model(ids, orders=orders, labels=ids).loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = {name for name, _ in model.named_parameters() if "target_embeddings" in name or "modulation" in name}
    assert names
    for step in range(2):
        optimizer.zero_grad()
        model(ids, orders=orders, labels=ids).loss.backward()
        untrained = {name for name, weight in model.named_parameters() if name in names and not weight.grad.any()}
        assert untrained <= ({"model.target_embeddings.weight"} if target_injection == "adaln" and step == 0 else set())
        optimizer.step()
    assert model(ids, orders=orders, labels=ids).loss < before


def test_training_can_start_from_the_folder(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    gpt2 = random_gpt2()
    gpt2.save_pretrained(tmp_path / "gpt2")
    tiny_tokenizer.save_pretrained(tmp_path / "gpt2")
    convert(str(tmp_path / "gpt2"), tmp_path / "out")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(16, (1, LENGTH))
    torch.testing.assert_close(model(ids).logits, convert_model(gpt2)(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").mask_token_id == model.config.mask_token_id == 16
    (tmp_path / "run.yaml").write_text(f"corpus: a.txt\nsequence_length: 10\ninit_from: {tmp_path / 'out'}\n")
    assert parse_arguments([str(tmp_path / "run.yaml")])[0].hidden_act == "gelu_new"
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        convert(str(tmp_path / "gpt2"), tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "_by_inverse_layer_idx` of the GPT-2 is True; only False"),
        ({"tie_word_embeddings": False}, "`tie_word_embeddings` of the GPT-2 is False; only True"),
        ({"eos_token_id": None}, "no `eos_token_id`"),
    ],
)
def test_unsupported_settings_are_errors(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_model(random_gpt2(**settings))


def test_models_of_other_types_are_errors(tmp_path: Path) -> None:
    BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="a model of type 'bert', but must be a GPT-2"):
        convert(str(tmp_path / "bert"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"There is no model '.*nowhere'"):
        convert(str(tmp_path / "nowhere"), tmp_path / "out")
