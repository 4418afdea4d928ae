# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path

from tests.test_accelerator import pytestmark  # noqa: F401

ROOT = Path(__file__).parents[2]


def test_no_operation_mixes_devices_and_results_equal_the_cpu() -> None:
    command = [sys.executable, "-m", "tests.studies.accelerator"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    outcomes = json.loads(process.stdout)
    assert len(outcomes) == 6
    assert {name: outcome["error"] for name, outcome in outcomes.items() if "error" in outcome} == {}
    assert [name for name, outcome in outcomes.items() if not outcome["is_equal"]] == []
    assert {name: outcome["cudnn"] for name, outcome in outcomes.items() if outcome["cudnn"] != [False]} == {}
