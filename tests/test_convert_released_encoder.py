# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Conversion of released RADD, SEDD and MDLM models, and parity with the authors' code.

The golden values are float32 outputs of the authors' code at some positions of three sequences. (In the code of MDLM,
the two functions of flash-attn, which need a GPU, were replaced by the same functions in PyTorch.)
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from modeling_aogpt import MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.convert_reference_checkpoint import (
    MDLM,
    SEDD,
    convert,
    load_released,
    read_encoder_config,
)
from tests.references import log_score, network_output

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(params=["radd", "sedd", "mdlm"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def settings(name: str) -> dict[str, Any]:
    with safe_open(FIXTURES / f"{name}_model.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["config"])


@pytest.fixture
def source(name: str, settings: dict[str, Any], tmp_path: Path) -> Path:
    """Return a folder in the released format: settings and weights."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(settings))
    save_file(load_file(FIXTURES / f"{name}_model.safetensors"), source / "model.safetensors")
    return source


@torch.no_grad()
def check_golden(model: MDMEncoderForMaskedLM, name: str, tolerance: float = 1e-4) -> None:
    golden = load_file(FIXTURES / f"{name}_golden.safetensors")
    ids, positions = golden["input_ids"], golden["positions"]
    assert (ids[:, positions] == model.config.mask_token_id).any()
    assert (ids[:, positions] != model.config.mask_token_id).any()
    if name != "sedd":
        output = network_output(model, ids)[:, positions]
        torch.testing.assert_close(output, golden["logits"], rtol=0, atol=tolerance, check_dtype=False)
        return
    for level in range(3):
        output = log_score(model, ids, golden[f"sigma_{level}"])[:, positions]
        torch.testing.assert_close(output, golden[f"log_score_{level}"], rtol=0, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_equal_those_of_the_released_code(source: Path, name: str, attention: str, dtype: torch.dtype) -> None:
    model = load_released(source).to(dtype)
    model.set_attn_implementation(attention)
    check_golden(model, name)


def test_an_adapter_in_the_folder_is_an_error(source: Path) -> None:
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"more than one model: adapter_config\.json, model\.safetensors"):
        load_released(source)


def test_a_converted_folder_loads_with_all_released_weights(source: Path, name: str, tmp_path: Path) -> None:
    written = convert(source, tmp_path / "new" / "model")
    assert (written.config.vocab_size, written.config.num_valid_tokens, written.config.mask_token_id) == (97, 96, 96)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "new" / "model")
    assert isinstance(model, MDMEncoderForMaskedLM)
    check_golden(model, name)
    with safe_open(FIXTURES / f"{name}_model.safetensors", framework="pt") as file:
        released = {key: file.get_tensor(key).numel() for key in file.keys() if not key.endswith("inv_freq")}
    if name == "mdlm":  # constant shifts are biases of the five norms; the other modulations are parts of weights
        released = {key: size for key, size in released.items() if "sigma_map" not in key and "adaLN" not in key}
        released["shifts"] = 5 * 32
    assert model.num_parameters() == sum(released.values())


@torch.no_grad()
def test_logits_are_those_of_the_denoiser(name: str, source: Path) -> None:
    """
    RADD and MDLM: log q is the log-softmax of the output over the first V ids.

    SEDD: log q is log score + log(e^sigma - 1), up to normalization.
    """
    model = load_released(source).double()
    ids = load_file(FIXTURES / f"{name}_golden.safetensors")["input_ids"]
    if name != "sedd":
        sigma, expected = None, network_output(model, ids)[..., :96].log_softmax(-1)
    else:
        sigma = torch.tensor([0.1, 1.0, 5.0])
        score = (log_score(model, ids, sigma)[..., :96] + sigma.expm1().log()[:, None, None]).exp()
        expected = (score / score.sum(-1, keepdim=True)).log()
    logits = model(ids, sigma=sigma).logits
    is_masked = ids == 96
    torch.testing.assert_close(logits.log_softmax(-1)[is_masked][:, :96], expected[is_masked], rtol=0, atol=1e-6)


def test_a_gpt2_vocabulary_has_its_end_of_text_token(name: str, settings: dict[str, Any]) -> None:
    def read(changes: dict[str, Any]) -> MDMEncoderConfig:
        return read_encoder_config(settings | changes, MDLM if name == "mdlm" else SEDD, Path("source"))

    config = read({"tokens": 50257, "vocab_size": 50258})
    assert (config.vocab_size, config.mask_token_id) == (50258, 50257)
    assert config.bos_token_id == config.eos_token_id == 50256
    assert read({}).eos_token_id is None


def conversion_error(source: Path, tmp_path: Path, **arguments: Any) -> str:
    """Return the message of the error of a conversion, which must not have written anything."""
    with pytest.raises(ValueError, match="source") as error:
        convert(source, tmp_path / "model", **arguments)
    assert not (tmp_path / "model").exists()
    return str(error.value)


@pytest.mark.parametrize("name", ["radd", "sedd"], indirect=True)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda given: given["graph"].update(type="uniform"), "graph.type 'uniform'"),
        (lambda given: given["model"].update(n_blocks=3), "blocks.2.norm1.weight is missing"),
        (lambda given: given["model"].update(n_blocks=1), "blocks.1.mlp.0.weight is unknown"),
        (lambda given: given["model"].update(n_heads=8), "inv_freq does not have the frequencies of base 10000 and"),
        (lambda given: given["model"].update(n_heads=5), "must be a multiple of `num_attention_heads` (5)"),
        (lambda given: given["model"].pop("hidden_size"), "use training/conversion/causal_lm.py"),
        (lambda given: given.update(tokens=95), "vocab_embed.embedding has shape (97, 32) instead of (96, 32)"),
        (lambda given: given.pop("tokens"), "has tokens None"),
        (lambda given: given.pop("model"), "is not the configuration of a SEDD, RADD or MDLM model"),
    ],
)
def test_settings_that_do_not_fit_are_errors(
    source: Path, settings: dict[str, Any], tmp_path: Path, change: Callable[[dict], object], problem: str
) -> None:
    change(settings)
    (source / "config.json").write_text(json.dumps(settings))
    assert problem in conversion_error(source, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("mdlm", {"time_conditioning": True}, "time_conditioning True"),
        ("mdlm", {"n_blocks": 3}, "blocks.2.norm1.weight is missing"),
        ("mdlm", {"n_heads": 8}, "inv_freq does not have the frequencies of base 10000 and n_heads=8"),
        ("mdlm", {"cond_dim": 17}, "sigma_map.mlp.0.weight has shape (16, 256) instead of (17, 256)"),
        ("mdlm", {"vocab_size": 96}, "vocab_embed.embedding has shape (97, 32) instead of (96, 32)"),
        ("mdlm", {"vocab_size": "97"}, "has settings that are not allowed"),
        ("sedd", {"model": {"scale_by_sigma": False}}, "scale_by_sigma"),
    ],
    indirect=["name"],
)
def test_other_settings_of_mdlm_and_sedd_are_errors(
    source: Path, settings: dict[str, Any], tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    (source / "config.json").write_text(json.dumps(settings | changes))
    assert problem in conversion_error(source, tmp_path)


def test_missing_and_unknown_tensors_are_errors(name: str, source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    prefix = "backbone." if name == "mdlm" else ""
    del tensors[f"{prefix}blocks.1.attn_out.weight"]
    tensors[f"{prefix}blocks.1.attn_out.bias"] = torch.zeros(32)
    save_file(tensors, source / "model.safetensors")
    message = conversion_error(source, tmp_path)
    assert "blocks.1.attn_out.weight is missing" in message
    assert "blocks.1.attn_out.bias is unknown" in message


def test_other_rotary_frequencies_are_an_error(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors = {key: tensor**2 if key.endswith("inv_freq") else tensor for key, tensor in tensors.items()}
    save_file(tensors, source / "model.safetensors")
    assert "rotary_emb.inv_freq" in conversion_error(source, tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_damaged_and_missing_files_are_errors(source: Path, tmp_path: Path, file: str) -> None:
    (source / file).write_bytes((source / file).read_bytes()[:-20])
    assert "damaged" in conversion_error(source, tmp_path)
    (source / file).unlink()
    assert file in conversion_error(source, tmp_path)


def test_choosing_the_live_weights_of_a_folder_is_an_error(source: Path, tmp_path: Path) -> None:
    assert "Remove `weights`" in conversion_error(source, tmp_path, weights="live")
    assert load_released(source, weights="ema").config.vocab_size == 97
