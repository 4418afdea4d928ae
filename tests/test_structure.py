# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_nothing_outside_the_studies_imports_them() -> None:
    """Studies may import everything. A study can then be changed or deleted without consequences."""
    folders = ("modeling_aogpt", "common", "training", "eval", "model_cards", "demo", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if "studies" not in file.parts]
    assert len(files) > 100
    pattern = re.compile(r"^\s*(from|import) .*\bstudies\b", re.MULTILINE)
    assert [str(file) for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []
