# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md: its snippets work where it says they belong, and the files that it names exist."""

import keyword
import re
from pathlib import Path
from typing import Any

import evaluate
import pytest
import torch

from common import corpora
from common.splitting import is_held_out, sha256
from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.unmasking import CERTAINTY_MEASURES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def snippet(kind: str) -> str:
    [source] = re.findall(rf"```python {kind}\n(.*?)```", TEXT, re.DOTALL)
    return source


def run_snippet(kind: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(snippet(kind), names)
    return names


def test_named_files_and_objects_exist() -> None:
    names = re.findall(r"`((?:modeling_aogpt|common|training|eval|model_cards|demo|tests|docs)/[\w./]*)`", TEXT)
    assert len(names) > 8
    missing = [name for name in names if not name.endswith(("/NAME", "/test_x.py")) and not (ROOT / name).exists()]
    assert missing == []
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert folders <= set(re.findall(r"`(\w+)/`", TEXT))
    for file, name in (("modeling_aogpt/unmasking.py", "CERTAINTY_MEASURES"), ("common/corpora.py", "BUILT_IN")):
        assert f"`{file}`" in TEXT
        assert f"`{name}`" in TEXT
        assert f"\n{name}" in (ROOT / file).read_text()


@torch.no_grad()
def test_the_order(tiny_model: AOGPTForAnyOrderLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generation begins at the position whose first prediction has the largest second moment."""
    second_moment = run_snippet("order")["second_moment"]
    assert second_moment(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist() == [0.5, 1.0]
    monkeypatch.setitem(CERTAINTY_MEASURES, "second_moment", second_moment)
    output = tiny_model.generate(max_length=6, order="second_moment", return_dict_in_generate=True)
    ids, num_valid_tokens = torch.zeros(1, 6, dtype=torch.long), tiny_model.config.num_valid_tokens
    first = torch.cat(
        [
            tiny_model(ids, orders=torch.arange(6).roll(-position)[None]).logits[:, position, :num_valid_tokens]
            for position in range(6)
        ]
    )
    assert output.orders[0, 0] == second_moment(first.softmax(dim=-1)).argmax()
    assert not (output.sequences == tiny_model.config.mask_token_id).any()


@pytest.mark.usefixtures("datasets_cache")
def test_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpora.BUILT_IN, "python-keywords", run_snippet("corpus")["python_keywords"])
    loaded = corpora.load_corpus(corpora.DataArguments(["python-keywords"], validation_fraction=0.2))
    texts = [f"The keyword {word}." for word in keyword.kwlist]
    held_out = [f"The keyword {word}." for word in keyword.kwlist if is_held_out(sha256(word), 0.2)]
    assert list(loaded.validation) == held_out
    assert list(loaded.train) == [text for text in texts if text not in held_out]
    assert 0 < len(held_out) < len(texts)


def test_the_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "mean_length" / "mean_length.py"
    path.parent.mkdir()
    path.write_text(snippet("metric"))
    metric = evaluate.load(str(path.parent), cache_dir=str(tmp_path / "cache"))
    assert metric.compute(predictions=[[1, 2], [3]]) == {"mean_length": 1.5}
