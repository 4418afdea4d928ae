# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/evaluation.md run, and its commands parse."""

import re
import shlex
from itertools import islice
from pathlib import Path

import pytest
from transformers import HfArgumentParser

from eval.generative import GenerativeArguments
from eval.protocols import EVALUATION_SETS
from eval.zero_shot import ScoringArguments
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.corpora import unicode_names
from training.tokenization import train_tokenizer, vocabulary_arguments

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def commands(script: str) -> list[list[str]]:
    """The arguments of each command that runs the script."""
    lines = "\n".join(blocks("console")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.removeprefix("$ ")) for line in lines]
    return [line[line.index(script) + 1 :] for line in words if script in line]


def test_python_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    tokenizer = train_tokenizer((name for _, name in islice(unicode_names(), 3000)), vocab_size=512)
    config = AOGPTConfig(
        **vocabulary_arguments(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    AOGPTForAnyOrderLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.chdir(ROOT)
    source = "\n".join(blocks("python"))
    assert "runs/quickstart/model" in source
    names: dict = {}
    exec(source.replace("runs/quickstart/model", str(tmp_path)), names)
    assert len(names["scores"]["perplexities"]) == 2
    assert "distinct_2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "arguments", "name"),
    [
        ("eval/zero_shot.py", ScoringArguments, "model"),
        ("eval/generative.py", GenerativeArguments, "models"),
    ],
)
def test_commands_parse(script: str, arguments: type, name: str) -> None:
    lines = commands(script)
    assert len(lines) > 1
    for line in lines:
        parser = HfArgumentParser(arguments, allow_abbrev=False)
        parser.add_argument(name, nargs="+" if name == "models" else None)
        parser.parse_args_into_dataclasses(line)


def test_local_files_are_those_that_are_read() -> None:
    for name, found in EVALUATION_SETS.items():
        (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| `{name}` | `"))
        assert row.endswith(f"| {found.split} |")
        pattern = re.escape(found.local).replace(re.escape("{split}"), r"(\{train,valid,test\}|test)")
        assert re.search(f"`{pattern}`", row)


def test_links_and_pictures_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert links
    assert all((ROOT / "docs" / link).exists() for link in links), links
