# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Data files cannot run code, and nothing is downloaded unless it was requested."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from model_cards import publish
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig
from modeling_aogpt.convert_reference_checkpoint import load_released

ROOT = Path(__file__).parents[1]
FOLDERS = ("modeling_aogpt", "common", "training", "eval", "model_cards")
CODE = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


@pytest.fixture
def model_folder(folder: str) -> Path:
    return Path(folder)


class Attack:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


# ------------------------------------------------------------------------------------------------------------- pickle

UNSAFE = re.compile(
    r"^\s*(import|from) (pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b|allow_pickle=True|shell=True"
    r"|\btorch\.load\((?!.*weights_only=True)|\byaml\.(load|unsafe_load)\(|\bos\.(system|popen)\("
    r"|(?<![\w.])(eval|exec|__import__)\(",
    re.MULTILINE,
)


def test_code_does_not_unpickle_or_evaluate_data() -> None:
    assert [path for path in CODE if UNSAFE.search(path.read_text(encoding="utf-8"))] == []
    for line in ("import pickle", "torch.load(path)", "torch.load(path, weights_only=False)", "exec(text)"):
        assert UNSAFE.search(line)


def test_a_malicious_pickle_does_not_run(model_folder: Path, tmp_path: Path) -> None:
    """The pickle replaces a released file, and the weights of a model folder."""
    trace = tmp_path / "trace"
    released = tmp_path / "released.pt"
    torch.save({"model": Attack(trace), "model_args": {}}, released)
    with pytest.raises(ValueError, match=r"is damaged, or contains more than tensors and"):
        load_released(released)
    (model_folder / "model.safetensors").unlink()
    torch.save(Attack(trace), model_folder / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights.only|unpickl|safetensors"):
        AOGPTForAnyOrderLM.from_pretrained(model_folder)
    with pytest.raises((OSError, ValueError), match="safetensors"):
        publish.load_local(model_folder)
    assert not trace.exists()
    torch.load(released, weights_only=False)
    assert trace.exists()  # without the protection, the attack works


# ------------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize("config_class", [AOGPTConfig, MDMEncoderConfig])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("vocab_size", 2**40),
        ("hidden_size", 2**30),
        ("max_position_embeddings", 10**12),
        ("intermediate_size", 2**40),
        ("target_embedding_size", -1),
        ("num_attention_heads", True),
        ("hidden_size", "768"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("nan")}),
        ("norm_eps", -1e-5),
        ("norm_eps", "1e-5"),
        ("initializer_range", float("inf")),
        ("hidden_act", "__import__('os').abort()"),
        ("attention_bias", "no"),
        ("eos_token_id", "0"),
        ("mask_token_id", 1.5),
        ("mask_token_id", 10**13),
    ],
)
def test_settings_that_are_not_allowed_are_errors(config_class: type[AOGPTConfig], name: str, value: object) -> None:
    sizes = {"vocab_size": 17, "hidden_size": 16, "num_attention_heads": 2, "position_encoding": "rotary"}
    settings = config_class(**sizes).to_dict() | {name: value}
    if name == "hidden_size":
        settings.pop("intermediate_size")
    with pytest.raises((ValueError, TypeError), match=name):
        config_class.from_dict(settings)


def test_a_configuration_that_does_not_fit_the_weights_is_an_error(model_folder: Path) -> None:
    config = json.loads((model_folder / "config.json").read_text())
    for changes, message in (
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` must be an integer from 1 to 1024, but is 1000000000"),
        ({"intermediate_size": 128}, "size"),
    ):
        (model_folder / "config.json").write_text(json.dumps(config | changes))
        for auto_class in (AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM):
            with pytest.raises((ValueError, RuntimeError), match=message):
                auto_class.from_pretrained(model_folder)


# ----------------------------------------------------------------------------------------------- downloads and code

ALONE = """
import pathlib, socket, sys

def refuse(*arguments):
    raise AssertionError(f"the network was used: {arguments}")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
import modeling_aogpt, modeling_aogpt.convert_reference_checkpoint
import training.pretrain, eval.zero_shot, model_cards.publish

folder, staged = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
for auto_class in (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModel):
    model = auto_class.from_pretrained(folder, trust_remote_code=False)
    assert type(model).__module__ == "modeling_aogpt.modeling_aogpt"
model.generate(num_return_sequences=2)
model.log_likelihood(tokenizer("abcd", return_tensors="pt").input_ids)
arguments = model_cards.publish.PublishArguments()
model_cards.publish.stage(pathlib.Path(folder), "somebody/model", pathlib.Path(staged), arguments)
"""


def test_loading_and_publishing_use_no_network_and_no_code_of_the_folder(model_folder: Path, tmp_path: Path) -> None:
    """Where the package is installed, the code in a model folder is neither run nor published."""
    trace = tmp_path / "trace"
    for path in model_folder.glob("*.py"):
        path.write_text(f"import os; os.mkdir({str(trace)!r})\n")
    (model_folder / "custom_generate").mkdir()
    shutil.copy(model_folder / "modeling_aogpt.py", model_folder / "custom_generate" / "generate.py")
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", ALONE, str(model_folder), str(tmp_path / "staged")]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    assert not trace.exists()
    published = (tmp_path / "staged" / "modeling_aogpt.py").read_bytes()
    assert published == (ROOT / "modeling_aogpt" / "modeling_aogpt.py").read_bytes()
