# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from training.hardware import check_launch, num_cores, use_all_cores, versions


@pytest.mark.parametrize(
    ("environment", "device", "expected"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cpu", [4]),  # `accelerate launch` sets both
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "3"}, "cpu", []),
        ({"OMP_NUM_THREADS": "1"}, "cpu", []),
        ({"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}, "cuda", []),
    ],
)
def test_launcher_leaves_no_core_idle(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], device: str, expected: list[int]
) -> None:
    for name in ("ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: list[int] = []
    monkeypatch.setattr("training.hardware.num_cores", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    use_all_cores(SimpleNamespace(device=torch.device(device), num_processes=2))
    assert given == expected


def test_deepspeed_is_refused() -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED, num_processes=1)
    with pytest.raises(ValueError, match=r"launch with training/accelerate/fsdp2.yaml"):
        check_launch(accelerator)


def test_facts_are_there() -> None:
    assert num_cores() >= 1
    assert versions()["torch"] == torch.__version__
