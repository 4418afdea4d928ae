# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from training.status import StepStatus


def test_the_loss_is_the_mean_and_any_signal_counts() -> None:
    status = StepStatus(7, torch.tensor([[1.0, 0.5, 0.0], [2.0, 0.5, 15.0], [6.0, 0.5, 0.0]]))
    assert (status.step, status.read()) == (7, (3.0, 0.5, 15))


def test_values_that_are_not_finite_are_kept() -> None:
    values = torch.tensor([[1.0, float("inf"), 0.0], [float("nan"), 0.0, 0.0]])
    loss, norm, _ = StepStatus(0, values).read()
    assert loss != loss
    assert norm == float("inf")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_values_are_copied_without_waiting() -> None:
    status = StepStatus(0, torch.tensor([[1.0, 2.0, 3.0]], device="cuda"))
    assert status._values.is_pinned()
    assert status.read() == (1.0, 2.0, 3)
