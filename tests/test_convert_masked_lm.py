# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Conversion of masked diffusion models with the layers of a Llama or Qwen, against Transformers' own classes.

The golden values of LLaDA are float32 outputs of the authors' code at some positions of three sequences.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from modeling_aogpt import MDMEncoderForMaskedLM
from tests.references import network_output, seeded
from tests.test_convert_causal_lm import LENGTH, make_causal
from training import convert_masked_lm
from training.convert_masked_lm import as_causal_lm, convert, convert_model

FIXTURES = Path(__file__).parent / "fixtures"
OLD_MASK, NUM_TOKENS = 96, 100  # of the LLaDA
FAMILIES = ("llama", "llama, biases, head width", "qwen2", "qwen3")


def make_tokenizer(num_tokens: int, **special: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words t0, t1, ..., some of which are special tokens."""
    tokenizer = Tokenizer(models.WordLevel({f"t{id}": id for id in range(num_tokens)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {name: f"t{id}" for name, id in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)


@pytest.fixture
def llada_settings() -> dict[str, Any]:
    with safe_open(FIXTURES / "llada_model.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["config"])


@pytest.fixture
def llada(tmp_path: Path, llada_settings: dict[str, Any]) -> Path:
    """Return the folder of a LLaDA, whose mask is not the last token."""
    folder = tmp_path / "llada"
    make_tokenizer(NUM_TOKENS, eos_token=81).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(llada_settings))
    tensors = load_file(FIXTURES / "llada_model.safetensors")
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:])):
        save_file({name: tensors[name] for name in part}, folder / f"model-{number}.safetensors")
    return folder


def save_dllm(causal: PreTrainedModel, folder: Path, **changes: Any) -> None:
    """Save a causal language model as dLLM does, with a tokenizer of 16 tokens, of which the last is the mask."""
    causal.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": f"a2d-{causal.config.model_type}", "architectures": ["A2DModel"]} | changes
    (folder / "config.json").write_text(json.dumps(settings))
    make_tokenizer(16, eos_token=13, mask_token=15).save_pretrained(folder)


@torch.no_grad()
def full_attention_logits(causal: PreTrainedModel, ids: torch.LongTensor) -> torch.Tensor:
    causal.set_attn_implementation("eager")
    return causal(ids, attention_mask=torch.zeros(1, 1, ids.shape[1], ids.shape[1]), use_cache=False).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_outputs_of_a_llada_equal_those_of_the_authors_code(llada_settings: dict[str, Any], dtype: torch.dtype) -> None:
    config, tensors = as_causal_lm(llada_settings, load_file(FIXTURES / "llada_model.safetensors"))
    model = convert_model(config, tensors, OLD_MASK).to(dtype)
    golden = load_file(FIXTURES / "llada_golden.safetensors")
    logits = network_output(model, golden["input_ids"])[:, golden["positions"]]
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-4, check_dtype=False)


@torch.no_grad()
def test_a_llada_gets_a_mask_with_the_highest_id(llada: Path, tmp_path: Path) -> None:
    convert(str(llada), tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert isinstance(model, MDMEncoderForMaskedLM)
    assert tokenizer.mask_token_id == model.config.mask_token_id == model.config.num_valid_tokens == NUM_TOKENS
    assert (model.config.vocab_size, model.config.max_position_embeddings) == (128, 64)
    golden = load_file(FIXTURES / "llada_golden.safetensors")
    ids = golden["input_ids"].masked_fill(golden["input_ids"] == OLD_MASK, NUM_TOKENS)
    logits = network_output(model, ids)[:, golden["positions"]]
    torch.testing.assert_close(logits, golden["logits"], rtol=0, atol=1e-4)

    model.lm_head.weight[OLD_MASK] = 100 * model.lm_head.weight.abs().amax(dim=0)  # would often be the likeliest
    filled = model.generate(ids, num_steps=4, generator=seeded())
    assert (filled < NUM_TOKENS).all()
    assert not (filled == OLD_MASK).any()
    assert (model.generate(ids, num_steps=4, generator=seeded(), suppress_tokens=None) == OLD_MASK).any()
    assert model.generation_config.eos_token_id == 81


@pytest.mark.parametrize("max_length", [None, LENGTH - 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_dllm_predict_the_same(family: str, max_length: int | None, tmp_path: Path) -> None:
    causal = make_causal(family)
    save_dllm(causal, tmp_path / "source")
    model = convert(str(tmp_path / "source"), tmp_path / "model", max_length)
    assert (model.config.mask_token_id, model.config.num_valid_tokens) == (15, 15)
    assert model.config.max_position_embeddings == (max_length or LENGTH)
    assert model.generation_config.suppress_tokens is None
    ids = torch.randint(16, (3, max_length or LENGTH), generator=seeded())
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    expected = full_attention_logits(causal, ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(network_output(loaded, ids), expected, rtol=0, atol=1e-4)
    assert loaded.generate(ids, num_steps=3, generator=seeded()).max() < 15


def test_tables_without_room_for_the_mask_grow(tmp_path: Path) -> None:
    """The mask of the tokenizer has the id 4, and each of its 16 tokens has a row."""
    causal = make_causal("qwen2").bfloat16()  # with tied embeddings
    save_dllm(causal, tmp_path / "source")
    make_tokenizer(16, eos_token=13, mask_token=4).save_pretrained(tmp_path / "source")
    model = convert(str(tmp_path / "source"), tmp_path / "model")
    assert (model.dtype, model.config.vocab_size, model.config.mask_token_id) == (torch.bfloat16, 17, 16)
    table = model.get_input_embeddings().weight
    assert torch.equal(table[:16], causal.get_input_embeddings().weight)
    assert torch.equal(table[16], table[4])
    assert model.generation_config.suppress_tokens == [4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "Dream"}, "A model of type 'Dream' cannot be converted. .* 'llada' or one of 'a2d-llama'"),
        ({"alibi": True}, "A LLaDA with `alibi=True` cannot be converted"),
        ({"n_layers": 3}, "These weights do not fit config.json: model.layers.2"),
        ({"n_layers": 1}, "These weights do not fit config.json: model.layers.1"),
        ({"d_model": 64}, "These weights do not fit config.json: lm_head.weight, model.embed_tokens.weight"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], message: str, llada: Path, tmp_path: Path) -> None:
    settings = json.loads((llada / "config.json").read_text())
    (llada / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(ValueError, match=message):
        convert(str(llada), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_incomplete_folders_are_errors(llada: Path, tmp_path: Path) -> None:
    settings = json.loads((llada / "config.json").read_text())
    del settings["mask_token_id"]
    (llada / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"Neither config\.json nor the tokenizer has a mask"):
        convert(str(llada), tmp_path / "model")
    del settings["n_heads"]
    (llada / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="has no n_heads"):
        convert(str(llada), tmp_path / "model")
    (llada / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        convert(str(llada), tmp_path / "model")
    (llada / "config.json").unlink()
    with pytest.raises(ValueError, match=r"must contain config\.json and"):
        convert(str(llada), tmp_path / "model")


def test_predictions_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save_dllm(make_causal("llama"), tmp_path / "source")
    real = convert_masked_lm.convert_settings
    monkeypatch.setattr(convert_masked_lm, "convert_settings", lambda *given: real(*given) | {"norm_eps": 0.5})
    with pytest.raises(ValueError, match="The logits of the encoder and of a llama with full attention differ by"):
        convert(str(tmp_path / "source"), tmp_path / "model")
