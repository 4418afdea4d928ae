# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Operations, launches and waits of a generation step on a GPU, see `operations.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of PyTorch cannot register devices from Python",
)
def test_a_step_takes_two_launches_and_few_operations() -> None:
    """One copy of indices and random numbers, and one replay. docs/results/speed has the same numbers."""
    command = [sys.executable, "-m", "tests.operations"]
    process = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    numbers = json.loads(process.stdout)
    outcomes = numbers["operations"]
    assert len(outcomes) == 8
    for name, outcome in outcomes.items():
        assert (outcome["launches"], outcome["waits"]) == (2, 0), name
    operations = {name: (outcome["layer"], outcome["outside"]) for name, outcome in outcomes.items()}
    assert operations == {
        "learned, one at a time": (15, 34),
        "learned, top-p": (15, 46),
        "learned, fixed counts": (16, 35),
        "learned, Bernoulli": (18, 35),
        "rotary, one at a time": (17, 34),
        "rotary, top-p": (17, 46),
        "rotary, fixed counts": (18, 35),
        "rotary, Bernoulli": (20, 35),
    }
    single = numbers["rows"].pop("(1, 1024, 256)")
    assert single["shapes"] <= 3  # additional rows take little time, and additional recordings take much
    for ratios in numbers["rows"].values():
        assert max(ratios["rows"], ratios["draws"]) < 1.4
        assert ratios["padded"] > 2
        assert ratios["shapes"] < 16
