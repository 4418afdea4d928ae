# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.convert_reference_checkpoint import AOGPT, SIGMA_GPT, config_of, convert, load_released, main

Checkpoint = dict[str, Any]


def write(checkpoint: Any, path: Path) -> Path:
    torch.save(checkpoint, path)
    return path


def refusal(checkpoint: Any, tmp_path: Path, weights: str = "ema") -> str:
    """The message with which a checkpoint is refused. Nothing may have been written."""
    source = write(checkpoint, tmp_path / "source.pt")
    with pytest.raises(ValueError, match=r"source\.pt") as error:
        convert(source, tmp_path / "model", weights)
    assert list(tmp_path.iterdir()) == [source]
    return str(error.value)


def assert_holds(out_dir: Path, expected: AOGPTForAnyOrderLM) -> None:
    model = AOGPTForAnyOrderLM.from_pretrained(out_dir)
    assert model.dtype == expected.dtype
    assert model.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in model.state_dict().items())


# ---------------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("released_name", ["aogpt"], indirect=True)
def test_command(released: Checkpoint, tmp_path: Path) -> None:
    source, out_dir = write(released, tmp_path / "source.pt"), tmp_path / "new" / "model"
    command = [sys.executable, "-m", "modeling_aogpt.convert_reference_checkpoint", source, out_dir]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "ema weights" in result.stdout
    assert [path.name for path in out_dir.parent.iterdir()] == ["model"]
    assert_holds(out_dir, load_released(source))


@pytest.mark.parametrize("released_name", ["sigmagpt"], indirect=True)
def test_option_of_the_command(
    released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    source, out_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    monkeypatch.setattr(sys, "argv", ["convert", str(source), str(out_dir), "--weights", "live"])
    main()
    assert "live weights" in capsys.readouterr().out
    assert_holds(out_dir, load_released(source, "live"))


@pytest.mark.parametrize("weights", ["ema", "live"])
def test_written_folder(released: Checkpoint, tmp_path: Path, weights: str) -> None:
    source, out_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    written = convert(source, out_dir, weights)
    assert written.dtype == torch.float32
    assert not written.training
    assert_holds(out_dir, written)
    files = {path.name for path in out_dir.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "modeling_aogpt.py"} <= files
    assert "convert_reference_checkpoint.py" not in files


def test_prefix_of_compiled_models(released: Checkpoint, tmp_path: Path) -> None:
    plain = load_released(write(released, tmp_path / "plain.pt"), "live").state_dict()
    released["model"] = {f"_orig_mod.{name}": tensor for name, tensor in released["model"].items()}
    prefixed = load_released(write(released, tmp_path / "prefixed.pt"), "live").state_dict()
    assert all(torch.equal(tensor, prefixed[name]) for name, tensor in plain.items())


def test_models_without_biases(released: Checkpoint, released_name: str, tmp_path: Path) -> None:
    """`bias=False` leaves the biases of adaLN and of AO-GPT's head, and in sigma-GPT none."""
    kept = {
        name: average
        for name, average in zip(released["model"], released["ema_model"]["shadow_params"], strict=False)
        if name.endswith(".weight") or "adaLN" in name or name == "lm_head.bias"
    }
    released["ema_model"]["shadow_params"] = list(kept.values())
    released["model"] = {name: tensor for name, tensor in released["model"].items() if name in kept or "head" in name}
    released["model_args"]["bias"] = False
    model = load_released(write(released, tmp_path / "source.pt"))
    assert not model.config.use_bias
    assert any(name.endswith(".bias") for name in model.state_dict()) == (released_name == "aogpt")
    norm = {"aogpt": "transformer.final_layer.ln_f.weight", "sigmagpt": "transformer.ln_f.weight"}[released_name]
    assert torch.equal(model.model.norm.weight, kept[norm])


AOGPT_ONLY = pytest.mark.parametrize("released_name", ["aogpt"], indirect=True)
SIGMA_GPT_ONLY = pytest.mark.parametrize("released_name", ["sigmagpt"], indirect=True)


def test_gpt2_vocabulary(released: Checkpoint, released_name: str) -> None:
    released["model_args"]["vocab_size"] = 50304
    architecture = {"aogpt": AOGPT, "sigmagpt": SIGMA_GPT}[released_name]
    config = config_of(released, architecture, released["model"], Path("source.pt"))
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (50304, 50257, 50257)
    assert config.bos_token_id == config.eos_token_id == 50256


def test_other_vocabulary(released: Checkpoint, tmp_path: Path) -> None:
    config = load_released(write(released, tmp_path / "source.pt")).config
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (96, 96, 96)
    assert config.bos_token_id is config.eos_token_id is None


def test_empty_folder_is_taken(released: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    convert(write(released, tmp_path / "source.pt"), tmp_path / "model")
    assert AOGPTConfig.from_pretrained(tmp_path / "model").vocab_size == 96


@AOGPT_ONLY
def test_tokenizer_is_written_with_its_mask(
    released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(released, tmp_path / "source.pt")  # of 96 tokens, no longer than 12
    for size in (95, 96):
        words = Tokenizer(models.WordLevel({f"w{id}": id for id in range(size)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(tmp_path / f"of-{size}")
    with pytest.raises(ValueError, match="of-95' has 95 tokens before its mask, but the model 96"):
        convert(source, tmp_path / "model", tokenizer=str(tmp_path / "of-95"))
    assert not (tmp_path / "model").exists()
    command = ["convert", str(source), str(tmp_path / "model"), "--tokenizer", str(tmp_path / "of-96")]
    monkeypatch.setattr(sys, "argv", command)
    main()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model")
    assert tokenizer("w7 <|mask|>").input_ids == [7, model.config.mask_token_id]
    assert tokenizer.model_max_length == model.config.max_position_embeddings


@AOGPT_ONLY
def test_the_folder_one_stands_in_is_filled_and_stays_the_same(
    released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    out_dir.mkdir()
    monkeypatch.chdir(out_dir)
    before = out_dir.stat().st_ino
    assert_holds(out_dir, convert(source, Path(".")))
    assert out_dir.stat().st_ino == before
    assert not [path.name for path in out_dir.iterdir() if path.is_dir()]


# --------------------------------------------------------------------------------------------------- what is refused


QKV = "transformer.h.1.attn.c_attn.weight"


def test_missing_tensor(released: Checkpoint, tmp_path: Path) -> None:
    del released["model"][QKV]
    assert f"{QKV} is missing" in refusal(released, tmp_path)


def test_renamed_tensor(released: Checkpoint, tmp_path: Path) -> None:
    released["model"]["transformer.h.1.attn.wqkv.weight"] = released["model"].pop(QKV)
    message = refusal(released, tmp_path)
    assert f"{QKV} is missing" in message
    assert "transformer.h.1.attn.wqkv.weight is unknown" in message


def test_surplus_tensor(released: Checkpoint, tmp_path: Path) -> None:
    released["model"]["transformer.h.1.attn.gate"] = torch.ones(3)
    assert "transformer.h.1.attn.gate is unknown" in refusal(released, tmp_path)


def test_tensor_of_wrong_shape(released: Checkpoint, tmp_path: Path) -> None:
    released["model"][QKV] = released["model"][QKV].T.contiguous()
    assert f"{QKV} has shape (32, 96) instead of (96, 32)" in refusal(released, tmp_path)


@pytest.mark.parametrize("damage", [torch.full((96, 32), float("nan")), torch.ones(96, 32).long(), [1.0]])
def test_tensor_of_wrong_kind(released: Checkpoint, tmp_path: Path, damage: Any) -> None:
    released["model"][QKV] = damage
    assert QKV in refusal(released, tmp_path, "live")


def test_many_wrong_tensors_are_not_all_listed(released: Checkpoint, tmp_path: Path) -> None:
    released["model"] = {name.replace(".h.", ".blocks."): tensor for name, tensor in released["model"].items()}
    message = refusal(released, tmp_path)
    assert "more" in message
    assert len(message) < 1000


@SIGMA_GPT_ONLY
def test_head_that_is_not_tied(released: Checkpoint, tmp_path: Path) -> None:
    released["model"]["lm_head.weight"] = released["model"]["lm_head.weight"] + 1
    message = refusal(released, tmp_path)
    assert "lm_head.weight" in message
    assert "transformer.wte.weight" in message


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("n_layer", 3, "transformer.h.2.ln_1.weight is missing"),
        ("n_layer", 1, "transformer.h.1.ln_1.weight is unknown"),
        ("n_embd", 64, "transformer.wte.weight has shape (96, 32) instead of (96, 64)"),
        ("block_size", 65, "transformer.wpe.weight has shape (65, 32) instead of (66, 32)"),
        ("vocab_size", 97, "transformer.wte.weight has shape (96, 32) instead of (97, 32)"),
        ("bias", False, "transformer.h.0.attn.c_attn.bias is unknown"),
    ],
)
def test_settings_that_do_not_fit_the_tensors(
    released: Checkpoint, tmp_path: Path, setting: str, value: int, named: str
) -> None:
    released["model_args"][setting] = value
    assert named in refusal(released, tmp_path)


@AOGPT_ONLY
def test_number_of_heads_that_does_not_fit_the_tensors(released: Checkpoint, tmp_path: Path) -> None:
    released["model_args"]["n_head"] = 8
    assert "transformer.h.0.attn.q_norm.weight has shape (8,) instead of (4,)" in refusal(released, tmp_path)


@pytest.mark.parametrize(("setting", "value"), [("n_head", 5), ("n_layer", 0), ("n_embd", "32"), ("block_size", None)])
def test_impossible_settings(released: Checkpoint, tmp_path: Path, setting: str, value: Any) -> None:
    released["model_args"][setting] = value
    assert str(value) in refusal(released, tmp_path)


def test_unknown_setting(released: Checkpoint, tmp_path: Path) -> None:
    released["model_args"]["rope"] = True
    assert "rope" in refusal(released, tmp_path)


def test_missing_setting(released: Checkpoint, tmp_path: Path) -> None:
    del released["model_args"]["n_head"]
    assert "n_head" in refusal(released, tmp_path)


@pytest.mark.parametrize("ema", [None, {"decay": 0.9999}, {"shadow_params": torch.ones(3)}])
def test_file_without_moving_averages(released: Checkpoint, tmp_path: Path, ema: Any) -> None:
    released["ema_model"] = ema
    assert "--weights live" in refusal(released, tmp_path)
    assert load_released(tmp_path / "source.pt", "live").config.vocab_size == 96


def test_missing_moving_average(released: Checkpoint, tmp_path: Path) -> None:
    number = len(released["ema_model"]["shadow_params"])
    del released["ema_model"]["shadow_params"][5]
    assert f"{number - 1} moving averages for {number} parameters" in refusal(released, tmp_path)


def test_moving_averages_in_another_order(released: Checkpoint, tmp_path: Path) -> None:
    released["ema_model"]["shadow_params"].reverse()
    assert "transformer.wte.weight has shape" in refusal(released, tmp_path)


@pytest.mark.parametrize(
    "checkpoint",
    [
        [torch.ones(2)],
        {"epoch": 3},
        {"model": [torch.ones(2)], "model_args": {}},
        {"model": {"transformer.wte.weight": torch.ones(2)}},
        {"model": {"transformer.wte.weight": torch.ones(2)}, "model_args": {}},
        Path("an object that is not plain data"),
    ],
)
def test_other_files_of_torch(checkpoint: Any, tmp_path: Path) -> None:
    refusal(checkpoint, tmp_path)


class Trap:
    """An object that runs code when it is unpickled: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    refusal({"model": {}, "model_args": {}, "trap": Trap(tmp_path / "trap")}, tmp_path)


@AOGPT_ONLY
@pytest.mark.parametrize("offset", [0.3, 0.6, 0.9])
def test_file_with_a_wrong_byte(released: Checkpoint, tmp_path: Path, offset: float) -> None:
    source = write(released, tmp_path / "source.pt")
    content = bytearray(source.read_bytes())
    content[int(offset * len(content))] ^= 0x10
    source.write_bytes(content)
    with pytest.raises(ValueError, match=r"source.pt is damaged.*checksum of .*/data/\d+ is wrong"):
        convert(source, tmp_path / "model")


@AOGPT_ONLY
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_file_that_is_cut_off(released: Checkpoint, tmp_path: Path, kept: float) -> None:
    source = write(released, tmp_path / "source.pt")
    content = source.read_bytes()
    source.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"source.pt is damaged"):
        convert(source, tmp_path / "model")


@pytest.mark.parametrize(("name", "hint"), [("missing.pt", "not there"), ("", "a folder")])
def test_source_that_is_no_file(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        convert(tmp_path / name, tmp_path / "model")


@AOGPT_ONLY
def test_unknown_choice_of_weights(released: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'averaged' is not one of 'ema', 'live'"):
        convert(write(released, tmp_path / "source.pt"), tmp_path / "model", "averaged")


@AOGPT_ONLY
@pytest.mark.parametrize("occupy", [lambda path: path.mkdir() or (path / "notes").touch(), lambda path: path.touch()])
def test_output_that_is_in_use(released: Checkpoint, tmp_path: Path, occupy: Callable[[Path], object]) -> None:
    source, out_dir = write(released, tmp_path / "source.pt"), tmp_path / "model"
    occupy(out_dir)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="model exists and is not an empty folder: remove it or name another one"):
        convert(source, out_dir)
    assert sorted(tmp_path.rglob("*")) == before


@AOGPT_ONLY
def test_nothing_half_written_stays(released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(model: AOGPTForAnyOrderLM, folder: str) -> None:
        (Path(folder) / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AOGPTForAnyOrderLM, "save_pretrained", full_disk)
    source = write(released, tmp_path / "source.pt")
    with pytest.raises(OSError, match="No space left"):
        convert(source, tmp_path / "model")
    assert set(tmp_path.rglob("*")) == {source, tmp_path / "model"}


@AOGPT_ONLY
def test_the_configuration_comes_last(released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without it is no model: so none is taken for one that was interrupted."""
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: moved.append(Path(new).name) or replace(old, new))
    convert(write(released, tmp_path / "source.pt"), tmp_path / "model")
    assert moved[-1] == "config.json"
    assert "model.safetensors" in moved


@AOGPT_ONLY
def test_command_says_what_is_wrong(released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del released["model"][QKV]
    source = write(released, tmp_path / "source.pt")
    monkeypatch.setattr(sys, "argv", ["convert", str(source), str(tmp_path / "model")])
    with pytest.raises(SystemExit, match=rf"^error: .*{QKV} is missing"):
        main()
    assert not (tmp_path / "model").exists()


@AOGPT_ONLY
def test_a_place_that_cannot_be_written_to_is_said_in_a_line(
    released: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(released, tmp_path / "source.pt")
    monkeypatch.setattr(sys, "argv", ["convert", str(source), str(source / "model")])
    with pytest.raises(SystemExit, match=r"^error: .*Not a directory"):
        main()
