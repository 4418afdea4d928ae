# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Commands in two processes on the CPU, which communicate with Gloo."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_in_two_processes(script: str, *arguments: str | Path, cache: Path) -> str:
    """Run a script of this repository with a cache of `datasets`, and return what it prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(cache)}
    command = [*launch, ROOT / script, *arguments]
    return subprocess.run(command, check=True, env=environment, timeout=300, stdout=subprocess.PIPE, text=True).stdout
