# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of a training step. They are copied to the CPU while the device already computes the next step."""

import torch


class StepStatus:
    """
    Loss, gradient norm and stop signal of a training step in all processes.

    Args:
        step: Index of the step.
        values: Tensor (processes, 3) on the device, with the loss, the gradient norm and the signal of each process.
    """

    def __init__(self, step: int, values: torch.Tensor) -> None:
        self.step = step
        self._values = values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> tuple[float, float, int]:
        """Wait for the step. Return the mean loss, the gradient norm, and the stop signal of any process, or 0."""
        if self._copied is not None:
            self._copied.synchronize()
        losses, norms, signals = self._values.cpu().unbind(1)
        return losses.mean().item(), norms[0].item(), int(signals.max())
