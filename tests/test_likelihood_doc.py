# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/likelihood.md run, one after another, and its links and pictures exist."""

import re
from itertools import islice
from pathlib import Path

import pytest
import torch

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from training.corpora import unicode_names
from training.tokenization import train_tokenizer, vocabulary_arguments

PAGE = Path(__file__).parent.parent / "docs" / "likelihood.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_snippets_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
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
    source = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL))
    assert "runs/quickstart/model" in source
    names: dict = {}
    exec(source.replace("runs/quickstart/model", str(tmp_path)).replace(", trust_remote_code=True", ""), names)
    n, m = 16, 4
    assert names["exact"].num_rows == 2 * 2 * (n + (m - 1) * sum(range(3, n + 1)))
    assert names["few_rows"].num_rows == 2 * (64 * n + 16 * m * n)
    assert names["diffusion"].num_rows == 2 * 16 * m * n
    hidden = names["holes"] == tokenizer.mask_token_id
    assert torch.equal(names["infill"].token_log_likelihood != 0, hidden)


def test_links_and_pictures_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert links
    assert all((PAGE.parent / link).exists() for link in links), links
