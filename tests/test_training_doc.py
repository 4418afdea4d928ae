# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/training.md run, its commands parse, its links exist."""

import re
import shlex
from itertools import islice
from pathlib import Path

import pytest

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.arguments import parse_arguments
from training.corpora import unicode_names
from training.tokenization import train_tokenizer, vocabulary_arguments

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("console")).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ ")) for line in lines]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 3000)), vocab_size=512)
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "position_encoding": "rotary"}
    config = AOGPTConfig(
        **vocabulary_arguments(tokenizer), **sizes, max_position_embeddings=256, initializer_range=0.06
    )
    AOGPTForAnyOrderLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_snippets_run(model_folder: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("peft")
    source = "\n".join(blocks("python"))
    assert "runs/quickstart/model" in source
    names: dict = {}
    exec(source.replace("runs/quickstart/model", str(model_folder)).replace(", trust_remote_code=True", ""), names)
    assert (names["batch"]["orders"][:, :4] < 4).all()
    trained = [name for name, weight in names["tuned"].named_parameters() if weight.grad is not None]
    assert trained
    assert all("lora" in name for name in trained)


def test_training_commands_parse(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = [command for command in commands() if "training/pretrain.py" in command]
    assert len(lines) == 5
    for command in lines:
        options = command[command.index("training/pretrain.py") + 1 :]
        parse_arguments([str(model_folder) if word.endswith(("/model", "/gpt2-aogpt")) else word for word in options])


def test_what_is_named_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert links
    assert all((PAGE.parent / link).exists() for link in links), links
    files = [word for command in commands() for word in command if word.startswith("training/")]
    assert all((ROOT / file).is_file() for file in files)
    recipes = re.findall(r"`(\w+\.yaml)`", TEXT)
    assert set(recipes) == {path.name for path in (ROOT / "training" / "configs").glob("*.yaml")}
