# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What CONTRIBUTING.md shows works where it says it belongs."""

import keyword
import re
from pathlib import Path
from typing import Any

import evaluate
import pytest
import torch

from common import corpora
from modeling_aogpt import AOGPTForAnyOrderLM, certainty, generation_settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def snippet(kind: str) -> str:
    [source] = re.findall(rf"```python {kind}\n(.*?)```", TEXT, re.DOTALL)
    return source


def names_of(kind: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(snippet(kind), names)
    return names


def test_what_is_named_exists() -> None:
    names = re.findall(r"`((?:modeling_aogpt|common|training|eval|model_cards|demo|tests|docs)/[\w./]*)`", TEXT)
    assert len(names) > 8
    assert [name for name in names if not name.endswith("/NAME") and not (ROOT / name).exists()] == []
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert folders <= set(re.findall(r"`(\w+)/`", TEXT))


def test_an_order_policy(tiny_model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = names_of("order")["second_moment"]
    assert policy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist() == [0.5, 1.0]
    monkeypatch.setitem(certainty.CERTAINTY_MEASURES, "second_moment", policy)
    monkeypatch.setattr(generation_settings, "ORDERS", (*generation_settings.ORDERS, "second_moment"))
    filled = tiny_model.generate(max_length=6, order="second_moment")
    assert not (filled == tiny_model.config.mask_token_id).any()


@pytest.mark.usefixtures("datasets_cache")
def test_a_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpora.BUILT_IN, "python-keywords", names_of("corpus")["python_keywords"])
    splits = corpora.load_corpus(corpora.CorpusArguments(["python-keywords"], validation_fraction=0.2))
    texts = [f"The keyword {word}." for word in keyword.kwlist]
    held_out = [f"The keyword {word}." for word in keyword.kwlist if corpora.is_held_out(word, 0.2)]
    assert splits["validation"]["text"][:] == held_out
    assert splits["train"]["text"][:] == [text for text in texts if text not in held_out]
    assert 0 < len(held_out) < len(texts)


def test_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "mean_length" / "mean_length.py"
    path.parent.mkdir()
    path.write_text(snippet("metric"))
    metric = evaluate.load(str(path.parent), cache_dir=str(tmp_path / "cache"))
    assert metric.compute(predictions=[[1, 2], [3]]) == {"mean_length": 1.5}
