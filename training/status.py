# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of a training step. They are copied to the CPU while the device already computes the next step."""

import torch


class StepStatus:
    """
    Status of a training step in all processes.

    Args:
        step: Index of the step.
        values: Tensor (processes, 4) on the device. For each process, it has the loss, the gradient norm, the stop
            signal, and whether its last checkpoint could not be written (1 or 0).
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

    def read(self) -> tuple[float, float, int, bool]:
        """
        Wait for the step, and return its status over all processes.

        Returns:
            The mean loss; the gradient norm; the stop signal that any process received, or 0; and whether any process
            could not write its last checkpoint.
        """
        if self._copied is not None:
            self._copied.synchronize()
        losses, norms, signals, failures = self._values.cpu().unbind(1)
        return losses.mean().item(), norms[0].item(), int(signals.max()), bool(failures.any())
