# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Configurations of Accelerate, and the Slurm script, in training/accelerate/."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType

from modeling_aogpt.modeling_aogpt import AOGPTPreTrainedModel

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "training" / "accelerate"
KINDS = {
    "cpu": (DistributedType.NO, 1),
    "cpus": (DistributedType.MULTI_GPU, 1),
    "gpu": (DistributedType.NO, 1),
    "ddp": (DistributedType.MULTI_GPU, 1),
    "fsdp2": (DistributedType.FSDP, 1),
    "hsdp_nodes": (DistributedType.FSDP, 2),
}


def test_all_files_are_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_accepts_the_file(name: str) -> None:
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))  # unknown keys are errors
    assert isinstance(config, ClusterConfig)
    kind, num_machines = KINDS[name]
    assert (config.distributed_type, config.num_machines) == (kind, num_machines)
    assert config.use_cpu == name.startswith("cpu")
    assert config.mixed_precision == ("no" if config.use_cpu else "bf16")
    assert (config.num_processes > 1) == (kind is not DistributedType.NO)
    options = vars(launch_command_parser().parse_args(["script.py"]))
    assert set(config.fsdp_config) <= options.keys()  # unknown keys are ignored here
    compiled = {} if config.use_cpu else {"dynamo_backend": "INDUCTOR"}
    if kind is DistributedType.FSDP:
        compiled["dynamo_use_regional_compilation"] = True
    assert config.dynamo_config == compiled
    assert set(config.dynamo_config) <= options.keys()
    assert set(config.parallelism_config) <= options.keys()
    assert list(config.parallelism_config.values()) == ([2, 8] if name == "hsdp_nodes" else [])
    if kind is DistributedType.FSDP:
        assert config.fsdp_config["fsdp_version"] == 2
        assert AOGPTPreTrainedModel._no_split_modules  # needed by TRANSFORMER_BASED_WRAP


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """
    Return the environment of a simulated cluster of one machine with two GPUs.

    Its `srun` records its options and its process, and its `accelerate` records its arguments and starts a process,
    which records that of `accelerate`.
    """
    commands = {
        "srun": f'echo $$ > {tmp_path}/task\nfor option; do [[ $option == --* ]] || break; shift; echo "$option"; done '
        f'> {tmp_path}/srun.log\nexec "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/scontrol.log\necho machine0',
        "accelerate": f'echo "$@" > {tmp_path}/launched\n{tmp_path}/process\nexit "${{CODE:-0}}"',
        "process": f'echo $PPID > {tmp_path}/launcher\nexec sleep "${{NAP:-0}}"',
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_CPUS_PER_TASK": "12",
        "SLURM_NNODES": "3",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "machine[0-2]",
    }


def start_script(slurm: dict[str, str], **more: str) -> subprocess.Popen:
    command = ["bash", str(FOLDER / "slurm.sh"), "training/configs/small.yaml", "--seed", "3"]
    return subprocess.Popen(command, env=slurm | more, start_new_session=True)


@pytest.mark.parametrize("code", [0, 5])
def test_the_slurm_script_launches_on_all_gpus(slurm: dict[str, str], tmp_path: Path, code: int) -> None:
    assert start_script(slurm, CODE=str(code), LAUNCH="fsdp2").wait(timeout=60) == code
    given = (tmp_path / "launched").read_text().split()
    parsed = launch_command_parser().parse_args(given[1:])
    assert (given[0], parsed.config_file) == ("launch", "training/accelerate/fsdp2.yaml")
    assert (parsed.num_machines, parsed.num_processes, parsed.machine_rank) == (3, 6, 1)
    assert (parsed.parallelism_config_dp_replicate_size, parsed.parallelism_config_dp_shard_size) == (3, 2)
    assert parsed.main_process_ip == "machine0"
    assert [parsed.training_script, *parsed.training_script_args] == [
        *("training/pretrain.py", "training/configs/small.yaml", "--seed", "3")
    ]
    assert "requeue" not in (tmp_path / "scontrol.log").read_text()
    assert (tmp_path / "srun.log").read_text().split() == ["--cpus-per-task=12", "--kill-on-bad-exit=0"]


def test_the_slurm_script_requeues_a_stopped_job(slurm: dict[str, str], tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.touch()
    script = start_script(slurm, NAP="100")
    try:
        deadline = time.monotonic() + 60
        while not launcher.read_text():
            assert time.monotonic() < deadline, "the launcher did not start"
            time.sleep(0.05)
        os.kill(int((tmp_path / "task").read_text()), signal.SIGTERM)  # Slurm signals the steps, not the batch script
        assert script.wait(timeout=60) == 143
        assert (tmp_path / "scontrol.log").read_text().splitlines()[-1] == "requeue 77"
    finally:
        for group in (script.pid, *map(int, launcher.read_text().split())):  # the launcher has its own session
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
