# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of an optimizer's state; and, where DeepSpeed is installed, runs with it of two processes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.training_runs import STEPS, final_state, losses, train, write_config
from training.zero import ZeroOptimizer

ROOT = Path(__file__).parents[1]

# Accelerate starts DeepSpeed on accelerators alone, though it runs on CPUs as well: so it is told after it has looked.
ZERO_ON_CPUS = """
import sys
from accelerate import Accelerator, DeepSpeedPlugin, PartialState
from accelerate.utils import DistributedType
from training.pretrain import Pretraining, main

stage, mixed_precision = int(sys.argv.pop(1)), sys.argv.pop(1)
state = Accelerator(cpu=True, mixed_precision=mixed_precision).state
plugin = DeepSpeedPlugin(zero_stage=stage)
state.deepspeed_plugins = {"default": plugin}
state.distributed_type = PartialState().distributed_type = DistributedType.DEEPSPEED
plugin.select(_from_accelerator_state=True)
plugin.set_mixed_precision(mixed_precision)
train = Pretraining.train

def checked(run):
    parts = sum(part.numel() for part in run.zero.parts())
    assert parts < 0.6 * sum(weight.numel() for weight in run.model.parameters())
    return train(run)

Pretraining.train = checked
main(sys.argv[1:])
"""


def accelerator(process: int = 0, zero_stage: int = 2, mixed_precision: str = "no", device: str = "none") -> object:
    config = {"zero_optimization": {"stage": zero_stage, "offload_optimizer": {"device": device}}}
    plugin = SimpleNamespace(zero_stage=zero_stage, deepspeed_config=config)
    return SimpleNamespace(
        state=SimpleNamespace(deepspeed_plugin=plugin),
        mixed_precision=mixed_precision,
        gradient_accumulation_steps=3,
        num_processes=2,
        process_index=process,
    )


def test_deepspeed_is_told_what_the_run_asks_for() -> None:
    one = accelerator(mixed_precision="bf16")
    ZeroOptimizer(one, torch.optim.AdamW([nn.Parameter(torch.zeros(1))]), sequences=5, max_grad_norm=0.5)
    config = one.state.deepspeed_plugin.deepspeed_config
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (5, 3)
    assert (config["gradient_clipping"], config["bf16"], config["torch_autocast"]) == (
        *(0.5, {"enabled": False}, {"enabled": True, "dtype": "bfloat16"}),
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"zero_stage": 3}, "zero_stage=3"), ({"device": "cpu"}, "=cpu"), ({"mixed_precision": "fp16"}, "=fp16")],
)
def test_what_is_not_supported_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*FSDP2 does too"):
        ZeroOptimizer(accelerator(**asked), torch.optim.AdamW([nn.Parameter(torch.zeros(1))]), 1, 1.0)


def test_parts_are_put_together_and_back() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((2, 3), (1, 1), (3,))]
    state = {
        weight: {"step": torch.tensor(7.0)} | {key: torch.randn_like(weight) for key in ("exp_avg", "exp_avg_sq")}
        for weight in weights
    }
    parts: list[ZeroOptimizer] = []
    for process in range(2):
        optimizer = torch.optim.AdamW([{"params": weights[:2]}, {"params": weights[2:]}])
        zero = ZeroOptimizer(accelerator(process), optimizer, 1, 1.0)
        for group, size in zip(optimizer.param_groups, (4, 2), strict=True):  # as DeepSpeed does, 7 and 3 with zeros
            group["params"] = [nn.Parameter(torch.zeros(size))]
        zero.put_back(state)
        parts.append(zero)
    flat = torch.cat([zero.parts()[0].detach() for zero in parts])
    assert torch.equal(flat, torch.cat([weights[0].detach().view(-1), weights[1].detach().view(-1), torch.zeros(1)]))

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        """What Accelerate does: the parts of both processes end to end."""
        for group, part in enumerate(parts[0].parts()):
            for key, value in parts[0].optimizer.state[part].items():
                if value is tensor:
                    return torch.cat([tensor, parts[1].optimizer.state[parts[1].parts()[group]][key]])
        raise AssertionError

    parts[0].accelerator.gather = gather
    for weight, expected in parts[0].whole_state().items():
        assert expected.keys() == state[weight].keys()
        assert all(torch.equal(expected[key], state[weight][key]) for key in expected)


def test_runs_of_two_processes_with_deepspeed(tmp_path: Path, datasets_cache: None) -> None:
    pytest.importorskip("deepspeed")
    config = write_config(tmp_path)
    (tmp_path / "zero_on_cpus.py").write_text(ZERO_ON_CPUS)
    train(config, tmp_path / "alone", "--save_total_limit=9")

    def run(out: str, stage: int, *options: str, mixed_precision: str = "no", start: str | None = None) -> Path:
        (tmp_path / out).mkdir()
        if start:
            name = "checkpoint-00000003.safetensors"
            (tmp_path / out / name).write_bytes((tmp_path / start / name).read_bytes())
        script = (str(tmp_path / "zero_on_cpus.py"), str(stage), mixed_precision)
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *script)
        done = subprocess.run(
            [
                sys.executable,
                *launch,
                str(config),
                f"--output_dir={tmp_path / out}",
                *options,
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return tmp_path / out

    def assert_close(out: Path, tolerance: float = 1e-5) -> None:
        expected, state = final_state(tmp_path / "alone"), final_state(out)
        assert state.keys() == expected.keys()
        assert len(losses(out)) == STEPS
        for name in expected:
            assert state[name].dtype == expected[name].dtype
            torch.testing.assert_close(state[name], expected[name], rtol=10 * tolerance, atol=tolerance, msg=name)

    zero2 = run("zero2", 2, "--save_total_limit=9", "--per_device_batch_size=3")
    assert_close(zero2)
    resumed = final_state(run("resumed", 2, "--per_device_batch_size=3", start="zero2"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in final_state(zero2).items())
    assert_close(run("zero1", 1, start="alone"))
    rounded = run("rounded", 2, mixed_precision="bf16")
    assert 1e-5 < (losses(rounded) - losses(tmp_path / "alone")).abs().max() < 0.05
    assert {tensor.dtype for name, tensor in final_state(rounded).items() if name != "losses"} == {torch.float32}
