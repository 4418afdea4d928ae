# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from common.models import check_own_tokenizer
from common.tokenizers import train_tokenizer, vocabulary_arguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig, MDMEncoderForMaskedLM
from modeling_aogpt.loading import find_model, load_model, load_pretrained, read_any_config
from modeling_aogpt.tokenization import add_mask_token, load_tokenizer
from tests import references
from tests.references import remove_weight
from training.architecture import DEFAULTS, build_config
from training.command_line import parse_arguments
from training.model import check_tokenizer, make_model

SIZES = references.SIZES | {"norm": "layernorm"}


@pytest.fixture
def vocabulary(tiny_tokenizer: PreTrainedTokenizerFast) -> dict[str, int | None]:
    return vocabulary_arguments(add_mask_token(tiny_tokenizer))


@pytest.fixture
def folder(tmp_path: Path, vocabulary: dict, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """Return a folder with a decoder and its tokenizer."""
    AOGPTForAnyOrderLM(AOGPTConfig(**SIZES, **vocabulary)).bfloat16().save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text("corpus: a.txt\nsequence_length: 10\n")
    return tmp_path / "model"


def parse(folder: Path, *options: str) -> tuple:
    return parse_arguments([str(folder.parent / "run.yaml"), f"--init_from={folder}", *options])


def test_architecture_tokenizer_and_weights_are_those_of_the_checkpoint(folder: Path, vocabulary: dict) -> None:
    architecture, data, _ = parse(folder)
    assert (architecture["norm"], architecture["max_position_embeddings"]) == ("layernorm", 12)
    assert data.tokenizer == str(folder)
    model = make_model(build_config(architecture, **vocabulary), str(folder))
    weights = load_file(folder / "model.safetensors")
    assert isinstance(model, AOGPTForAnyOrderLM)
    assert all(torch.equal(weight, weights[name].float()) for name, weight in model.named_parameters())
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


def test_training_can_start_from_an_encoder(tmp_path: Path, vocabulary: dict) -> None:
    sizes = build_config(DEFAULTS | SIZES | {"architecture": "encoder", "norm_bias": False}, **vocabulary)
    MDMEncoderForMaskedLM(sizes).save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text("corpus: a.txt\nsequence_length: 10\nobjective: masked_diffusion\n")
    architecture, _, _ = parse(tmp_path / "model")
    assert (architecture["architecture"], architecture["norm_bias"]) == ("encoder", False)
    config = build_config(architecture, **vocabulary)
    assert isinstance(config, MDMEncoderConfig)
    assert isinstance(make_model(config, str(tmp_path / "model")), MDMEncoderForMaskedLM)


def test_models_of_other_types_are_errors(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no model '.*nowhere'"):
        parse(folder.with_name("nowhere"))
    GPT2Config().save_pretrained(folder.with_name("gpt2"))
    with pytest.raises(ValueError, match=r"type 'gpt2'.*training/conversion/causal_lm.py"):
        parse(folder.with_name("gpt2"))


def test_the_model_of_a_run_is_found(folder: Path) -> None:
    assert find_model(folder.parent) == find_model(folder) == find_model(f"{folder}/") == str(folder)
    _, data, training = parse_arguments([str(folder.parent / "run.yaml"), f"--init_from={folder.parent}"])
    assert training.init_from == data.tokenizer == str(folder)
    assert find_model("openai-community/gpt2") == "openai-community/gpt2"
    with pytest.raises(ValueError, match=r"is a file.*export_checkpoint.py .*run\.yaml"):
        find_model(folder.parent / "run.yaml")
    (folder / "model").mkdir()
    assert find_model(folder) == str(folder)


def test_a_configuration_that_cannot_be_used_is_not_called_missing(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": -1}))
    with pytest.raises(ValueError, match=r"model' cannot be used.*`hidden_size`"):
        read_any_config(folder)


def test_a_tokenizer_that_does_not_match_is_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"The tokenizer has num_valid_tokens=257, but"):
        check_tokenizer(train_tokenizer(["a"], 257), *parse(folder))


def test_another_tokenizer_for_a_model_of_the_hub_is_an_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tokenizer has the same number of tokens. The cache of the Hub stands in for the Hub."""
    name, repository = "somebody/model", tmp_path / "hub/models--somebody--model"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    shutil.copytree(folder, repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("a" * 40)
    state = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary["A"] = vocabulary.pop("a")
    (folder / "tokenizer.json").write_text(json.dumps(state))
    check_own_tokenizer(name, load_tokenizer(name), str(folder))
    with pytest.raises(ValueError, match=r"`tokenizer` \(.*\) differs from the tokenizer of somebody/model"):
        check_own_tokenizer(name, load_tokenizer(folder), str(folder))


def test_a_tokenizer_with_another_end_of_text_is_an_error(folder: Path, tmp_path: Path) -> None:
    """Training ends texts with the tokenizer's end, but `generate` stops only at those of the configurations."""
    tokenizer = load_tokenizer(folder)
    tokenizer.eos_token = "a"
    tokenizer.save_pretrained(tmp_path / "edited")
    with pytest.raises(ValueError, match="edited\\) differs from the tokenizer of"):
        check_own_tokenizer(str(folder), tokenizer, str(tmp_path / "edited"))
    tokenizer.save_pretrained(folder)  # as if edited there
    arguments = parse(folder, f"--tokenizer={folder}")
    with pytest.raises(ValueError, match="The tokenizer has eos_token_id="):
        check_tokenizer(tokenizer, *arguments)
    path, ends = folder / "config.json", [0, tokenizer.eos_token_id]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ends}))
    check_tokenizer(tokenizer, *arguments)


def test_missing_weights_are_errors(folder: Path, vocabulary: dict) -> None:
    remove_weight(folder, "lm_head.bias")
    with pytest.raises(ValueError, match=r"do not match its configuration:"):
        make_model(AOGPTConfig(**SIZES, **vocabulary), str(folder))


def test_unused_weights_are_errors_for_models_of_this_package(folder: Path, tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=4, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    for path in (folder, tmp_path):
        weights = load_file(path / "model.safetensors") | {"another_head.weight": torch.zeros(3)}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"do not match its configuration:"):
        load_pretrained(AutoModel, folder)
    assert load_pretrained(AutoModelForCausalLM, tmp_path).config.n_embd == 8


def test_damaged_weights_and_wrong_shapes_are_errors(folder: Path, vocabulary: dict) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"lm_head.bias": torch.zeros(3)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"weights in .* shapes"):
        make_model(AOGPTConfig(**SIZES, **vocabulary), str(folder))
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"weights of .* are missing or damaged"):
        make_model(AOGPTConfig(**SIZES, **vocabulary), str(folder))


@pytest.mark.parametrize("older", ["adapter_config.json", "model.safetensors.index.json"])
def test_files_of_an_older_model_in_the_folder_are_an_error(folder: Path, older: str) -> None:
    (folder / older).write_text('{"base_model_name_or_path": "other", "weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(ValueError, match=f"more than one model: .*{older}"):
        load_model(folder)
    if older == "model.safetensors.index.json":  # some programs write an index of a single file
        (folder / older).write_text('{"weight_map": {"a": "model.safetensors"}}')
        load_model(folder)


def test_code_of_a_model_is_not_run_even_if_the_user_would_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `trust_remote_code=False`, Transformers asks the user."""
    (tmp_path / "model").mkdir()
    names = {
        "AutoConfig": "code.Config",
        "AutoTokenizer": ["code.Tokenizer", None],
        "AutoModelForCausalLM": "code.Model",
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "unknown", "auto_map": names}))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (tmp_path / "model" / "code.py").write_text(f"import os; os.mkdir({str(tmp_path / 'trace')!r})")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for load in (read_any_config, load_tokenizer, lambda path: load_pretrained(AutoModelForCausalLM, path)):
        with pytest.raises(ValueError, match="custom code"):
            load(str(tmp_path / "model"))
    assert not (tmp_path / "trace").exists()
