# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from aogpt.cli import main
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.convert_reference_checkpoint import AOGPT, SIGMA_GPT, convert, load_released, read_config

Checkpoint = dict[str, Any]


def write(checkpoint: Any, path: Path) -> Path:
    torch.save(checkpoint, path)
    return path


def conversion_error(checkpoint: Any, tmp_path: Path, weights: str = "ema") -> str:
    """Return the message of the error of a conversion, which must not have written anything."""
    source = write(checkpoint, tmp_path / "source.pt")
    with pytest.raises(ValueError, match=r"source\.pt") as error:
        convert(source, tmp_path / "model", weights)
    assert list(tmp_path.iterdir()) == [source]
    return str(error.value)


def assert_contains(output_dir: Path, expected: AOGPTForAnyOrderLM) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(output_dir)
    assert model.dtype == expected.dtype
    assert model.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in model.state_dict().items())


AOGPT_ONLY = pytest.mark.parametrize("released_name", ["aogpt"], indirect=True)
SIGMA_GPT_ONLY = pytest.mark.parametrize("released_name", ["sigmagpt"], indirect=True)


# --------------------------------------------------------------------------------------------------------- conversion


@AOGPT_ONLY
def test_the_command_writes_a_folder_and_reports_the_model(released: Checkpoint, tmp_path: Path) -> None:
    source, output_dir = write(released, tmp_path / "source.pt"), tmp_path / "new" / "model"
    command = [sys.executable, "-m", "aogpt", "convert", source, output_dir]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    parameters = load_released(source).num_parameters()
    assert result.stdout == f"{output_dir}: AOGPTForAnyOrderLM with {parameters:,} parameters, weights as published\n"
    assert [path.name for path in output_dir.parent.iterdir()] == ["model"]
    assert_contains(output_dir, load_released(source))


@pytest.mark.parametrize("weights", ["ema", "live", None])
def test_the_command_has_an_option_for_the_weights(
    released: Checkpoint, released_name: str, tmp_path: Path, weights: str | None
) -> None:
    """The default weights are those of the published numbers."""
    source, output_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    options = [] if weights is None else ["--weights", weights]
    main(["convert", str(source), str(output_dir), *options])
    chosen = weights or {"aogpt": "ema", "sigmagpt": "live"}[released_name]
    assert_contains(output_dir, load_released(source, chosen))
    assert_contains(output_dir, load_released(source, weights))
    with pytest.raises(AssertionError):
        assert_contains(output_dir, load_released(source, {"ema": "live", "live": "ema"}[chosen]))


@SIGMA_GPT_ONLY
def test_by_default_a_sigma_gpt_needs_no_moving_averages(released: Checkpoint, tmp_path: Path) -> None:
    del released["ema_model"]
    assert load_released(write(released, tmp_path / "source.pt")).config.vocab_size == 96


@pytest.mark.parametrize("weights", ["ema", "live"])
def test_the_folder_has_all_files_that_loading_needs(released: Checkpoint, tmp_path: Path, weights: str) -> None:
    source, output_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    written = convert(source, output_dir, weights)
    assert written.dtype == torch.float32
    assert not written.training
    assert_contains(output_dir, written)
    files = {path.name for path in output_dir.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "modeling_aogpt.py"} <= files
    assert "convert_reference_checkpoint.py" not in files


def test_the_prefix_of_compiled_models_is_removed(released: Checkpoint, tmp_path: Path) -> None:
    plain = load_released(write(released, tmp_path / "plain.pt"), "live").state_dict()
    released["model"] = {f"_orig_mod.{name}": tensor for name, tensor in released["model"].items()}
    prefixed = load_released(write(released, tmp_path / "prefixed.pt"), "live").state_dict()
    assert all(torch.equal(tensor, prefixed[name]) for name, tensor in plain.items())


def test_models_without_biases_are_converted(released: Checkpoint, released_name: str, tmp_path: Path) -> None:
    """With `bias=False`, an AO-GPT still has the biases of adaLN and of its head; a sigma-GPT has none."""
    kept = {
        name: average
        for name, average in zip(released["model"], released["ema_model"]["shadow_params"], strict=False)
        if name.endswith(".weight") or "adaLN" in name or name == "lm_head.bias"
    }
    released["ema_model"]["shadow_params"] = list(kept.values())
    released["model"] = {name: tensor for name, tensor in released["model"].items() if name in kept or "head" in name}
    released["model_args"]["bias"] = False
    model = load_released(write(released, tmp_path / "source.pt"), "ema")
    assert not any((model.config.attention_bias, model.config.attention_output_bias, model.config.mlp_bias))
    assert any(name.endswith(".bias") for name in model.state_dict()) == (released_name == "aogpt")
    norm = {"aogpt": "transformer.final_layer.ln_f.weight", "sigmagpt": "transformer.ln_f.weight"}[released_name]
    assert torch.equal(model.model.norm.weight, kept[norm])


def test_a_gpt2_vocabulary_has_its_end_of_text_token(released: Checkpoint, released_name: str) -> None:
    released["model_args"]["vocab_size"] = 50304
    architecture = {"aogpt": AOGPT, "sigmagpt": SIGMA_GPT}[released_name]
    config = read_config(released, architecture, released["model"], Path("source.pt"))
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (50304, 50257, 50257)
    assert config.bos_token_id == config.eos_token_id == 50256


def test_another_vocabulary_has_no_special_tokens(released: Checkpoint, tmp_path: Path) -> None:
    config = load_released(write(released, tmp_path / "source.pt")).config
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (96, 96, 96)
    assert config.bos_token_id is config.eos_token_id is None


@AOGPT_ONLY
def test_the_tokenizer_is_saved_with_a_mask_and_must_fit_the_model(released: Checkpoint, tmp_path: Path) -> None:
    source = write(released, tmp_path / "source.pt")  # 96 ids of text, and 12 positions
    for size in (95, 96):
        words = Tokenizer(models.WordLevel({f"w{id}": id for id in range(size)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(tmp_path / f"of-{size}")
    with pytest.raises(
        ValueError,
        match="of-95' does not fit the model: its mask has the id 95, but the mask of the model has the id 96",
    ):
        convert(source, tmp_path / "model", tokenizer=str(tmp_path / "of-95"))
    assert not (tmp_path / "model").exists()
    command = ["convert", str(source), str(tmp_path / "model"), "--tokenizer", str(tmp_path / "of-96")]
    main(command)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model")
    assert tokenizer("w7 <|mask|>").input_ids == [7, model.config.mask_token_id]
    assert tokenizer.model_max_length == model.config.max_position_embeddings


@AOGPT_ONLY
def test_the_output_may_be_the_current_folder_if_it_is_empty(
    released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    output_dir.mkdir()
    monkeypatch.chdir(output_dir)
    before = output_dir.stat().st_ino
    assert_contains(output_dir, convert(source, Path(".")))
    assert output_dir.stat().st_ino == before
    assert not [path.name for path in output_dir.iterdir() if path.is_dir()]


@AOGPT_ONLY
def test_an_error_leaves_no_files(released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, save = write(released, tmp_path / "source.pt"), AOGPTForAnyOrderLM.save_pretrained

    def fail(*arguments: Any) -> None:
        save(*arguments)
        raise OSError("No space left on device")

    monkeypatch.setattr(AOGPTForAnyOrderLM, "save_pretrained", fail)
    with pytest.raises(OSError, match="No space"):
        convert(source, tmp_path / "model")
    assert not any((tmp_path / "model").iterdir())


# ------------------------------------------------------------------------------------------------------------- errors


QKV = "transformer.h.1.attn.c_attn.weight"


def set_tensor(given: Checkpoint, change: Callable[[torch.Tensor], Any]) -> None:
    given["model"][QKV] = change(given["model"][QKV])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda given: given["model"].update(unknown=given["model"].pop(QKV)), f"{QKV} is missing; unknown is unknown"),
        (lambda given: set_tensor(given, lambda qkv: qkv.T), f"{QKV} has shape (32, 96) instead of (96, 32)"),
        (lambda given: set_tensor(given, lambda qkv: qkv / 0), f"NaN or infinite values in {QKV}"),
        (lambda given: set_tensor(given, torch.Tensor.long), f"{QKV} is not a tensor of floating-point numbers"),
        (lambda given: set_tensor(given, torch.Tensor.tolist), f"{QKV} is not a tensor of floating-point numbers"),
        (lambda given: given["model_args"].update(n_layer=3), "transformer.h.2.ln_1.weight is missing"),
        (lambda given: given["model_args"].update(n_layer=1), "transformer.h.1.ln_1.weight is unknown"),
        (lambda given: given["model_args"].update(n_embd=64), "transformer.wte.weight has shape (96, 32) instead of"),
        (lambda given: given["model_args"].update(block_size=65), "transformer.wpe.weight has shape (65, 32) instead"),
        (lambda given: given["model_args"].update(bias=False), "transformer.h.0.attn.c_attn.bias is unknown"),
        (lambda given: given["model_args"].update(n_head=5), "(5)"),
        (lambda given: given["model_args"].update(n_layer=0), "num_hidden_layers"),
        (lambda given: given["model_args"].update(n_embd="32"), "hidden_size"),
        (lambda given: given["model_args"].update(rope=True), "rope"),
        (lambda given: given["model_args"].pop("n_head"), "n_head"),
        (lambda given: given.pop("model"), "has no dictionary 'model'"),
        (lambda given: given.update(model={"wte": torch.ones(2)}), "has no tensor transformer.wtpe.weight"),
    ],
)
def test_files_with_other_tensors_or_settings_are_errors(
    released: Checkpoint, tmp_path: Path, change: Callable[[Checkpoint], object], problem: str
) -> None:
    change(released)
    assert problem in conversion_error(released, tmp_path)


@AOGPT_ONLY
def test_a_number_of_heads_that_does_not_fit_the_tensors_is_an_error(released: Checkpoint, tmp_path: Path) -> None:
    released["model_args"]["n_head"] = 8
    assert "transformer.h.0.attn.q_norm.weight has shape (8,) instead of (4,)" in conversion_error(released, tmp_path)


@SIGMA_GPT_ONLY
def test_a_sigma_gpt_with_a_head_of_its_own_is_an_error(released: Checkpoint, tmp_path: Path) -> None:
    released["model"]["lm_head.weight"] = released["model"]["lm_head.weight"] + 1
    assert "lm_head.weight and transformer.wte.weight" in conversion_error(released, tmp_path)


@pytest.mark.parametrize("ema", [None, {"decay": 0.9999}, {"shadow_params": torch.ones(3)}])
def test_a_file_without_moving_averages_has_only_live_weights(released: Checkpoint, tmp_path: Path, ema: Any) -> None:
    released["ema_model"] = ema
    assert "--weights live" in conversion_error(released, tmp_path)
    assert load_released(tmp_path / "source.pt", "live").config.vocab_size == 96


def test_other_moving_averages_are_errors(released: Checkpoint, tmp_path: Path) -> None:
    averages = released["ema_model"]["shadow_params"]
    averages.reverse()
    assert "transformer.wte.weight has shape" in conversion_error(released, tmp_path)
    averages.pop()
    (tmp_path / "source.pt").unlink()
    message = conversion_error(released, tmp_path)
    assert f"has {len(averages)} moving averages" in message
    assert f"{len(averages) + 1} parameters" in message


@AOGPT_ONLY
def test_damaged_files_are_errors(released: Checkpoint, tmp_path: Path) -> None:
    source = write(released, tmp_path / "source.pt")
    content = source.read_bytes()
    damaged = [content[: int(kept * len(content))] for kept in (0.0, 0.5, 0.99)]
    for offset in (0.3, 0.6, 0.9):
        position = int(offset * len(content))
        damaged.append(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
    for part in damaged:
        source.write_bytes(part)
        with pytest.raises(ValueError, match=r"source\.pt is damaged"):
            convert(source, tmp_path / "model")
    write(Path("an object that is not plain data"), source)
    with pytest.raises(ValueError, match=r"source\.pt is damaged"):
        convert(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "message"), [("missing.pt", "does not exist"), ("", r"folder without config\.json")])
def test_a_source_that_is_not_a_released_model_is_an_error(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / name, tmp_path / "model")


@AOGPT_ONLY
@pytest.mark.parametrize("occupy", [lambda path: path.mkdir() or (path / "notes").touch(), lambda path: path.touch()])
def test_an_output_folder_that_is_in_use_is_an_error(
    released: Checkpoint, tmp_path: Path, occupy: Callable[[Path], object]
) -> None:
    source, output_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    occupy(output_dir)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="model exists and is not an empty folder"):
        convert(source, output_dir)
    assert sorted(tmp_path.rglob("*")) == before
