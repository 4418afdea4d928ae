# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The README's snippets run, its commands parse, its links and pictures exist."""

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
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("console")).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ ")]


def test_python_snippets_run_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 3000)), vocab_size=512)
    config = AOGPTConfig(
        **vocabulary_arguments(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        position_encoding="rotary",
    )
    AOGPTForAnyOrderLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    source = "\n".join(blocks("python"))
    assert "runs/quickstart/model" in source
    names: dict = {}
    exec(source.replace("runs/quickstart/model", str(tmp_path)).replace(", trust_remote_code=True", ""), names)
    assert names["samples"].shape == names["fast"].shape == (4, 16)
    assert names["written"].shape == (1, 16)
    assert names["filled"].shape == (4, 16)
    assert not (names["filled"] == config.mask_token_id).any()
    assert names["loss"].requires_grad


def test_commands_name_what_exists() -> None:
    scripts = [Path(word) for command in commands() for word in command if word.endswith((".py", ".yaml"))]
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)
    targets = {command[1] for command in commands() if command[0] == "make"}
    assert {"quickstart", "test"} <= targets
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


def test_training_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = [command for command in commands() if "training/pretrain.py" in command]
    assert len(lines) > 1
    for command in lines:
        parse_arguments(command[command.index("training/pretrain.py") + 1 :])


def test_links_and_pictures_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link).exists() for link in links), links
