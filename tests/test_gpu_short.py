# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The short GPU measurement, on a CPU and with a tiny model. No test asserts a time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eval.benchmarks import gpu_short

ROOT = Path(__file__).parents[1]
CODE = """
import sys
sys.modules |= dict.fromkeys(("accelerate", "datasets", "matplotlib", "peft", "psutil"))
from eval.benchmarks import gpu_short
gpu_short.BATCH_SIZES, gpu_short.STEPS, gpu_short.FEW, gpu_short.MANY = [1], [3, 4, 6], 2, 4
gpu_short.TRAINING_BATCH_SIZE = 1
"""
ENDLESS = "import time\ngpu_short.measure_training = lambda config: time.sleep(3600)\n"


def measure(folder: Path, deadline: int, changes: str = "") -> tuple[subprocess.CompletedProcess, dict[str, Any], str]:
    """Run the command without compilation, in a Python with only PyTorch and Transformers."""
    code = f"{CODE}{changes}gpu_short.main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "--size", "tiny", "--deadline", str(deadline), "--output_dir", str(folder)]
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    text = (folder / "README.md").read_text() if (folder / "README.md").exists() else ""
    return process, json.loads((folder / "results.json").read_text())["results"] if text else {}, text


def test_missing_results_are_measured_and_written(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"results": {"tests": "2 passed", "step, batch 1": null}}')
    process, results, text = measure(tmp_path, 600)
    assert process.returncode == 0, process.stderr
    times = {name: value for name, value in results.items() if name.startswith(("plain", "compiled"))}
    assert len(times) == (2 + 2 * 3) + (2 + 1)
    assert all(isinstance(value, float) for value in times.values())
    for name in ("step, batch 1", "training step"):
        assert "aten::copy_" in results[name]
    assert results["tests"] == "2 passed"
    assert len(results) == len(times) + 3
    assert "Missing results: none." in text
    few, many, decoder = (
        times[f"plain {name}, batch 1, {steps} steps"]
        for name, steps in (("encoder", 2), ("encoder", 4), ("fixed_count", 6))
    )
    assert f"| 1 | 6 | fixed_count | {decoder:.3g} ({(2 * many - few) / decoder:.1f}x*) | " in text
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "results.json"}


def test_the_deadline_ends_the_command(tmp_path: Path) -> None:
    process, results, text = measure(tmp_path, 1, ENDLESS)
    assert process.returncode == -signal.SIGALRM
    missing = [name for name, value in results.items() if value is None]
    listed = text.partition("Missing results: ")[2].partition(".\n")[0].split("; ")
    assert set(missing) <= set(listed)
    assert len(missing) in (len(listed), len(listed) - 1)  # the alarm may come between the writing of the two files


def test_gpu_tests_that_do_not_end_in_time_are_missing() -> None:
    assert gpu_short.run_tests(time.monotonic()) is None
