# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Results of a training step, and the signals that stop a run."""

import signal
from types import FrameType

import torch


class StepStatus:
    """Status of a step, which is copied to the CPU while the device computes the next step.

    `values` (processes, 3) has the loss, the gradient norm and the stop signal of each process.
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
        """Wait for the step. Return the mean loss, the gradient norm, and the largest stop signal."""
        if self._copied is not None:
            self._copied.synchronize()
        losses, norms, signals = self._values.cpu().unbind(1)
        return losses.mean().item(), norms[0].item(), int(signals.max())


class StopRequest:
    """Context manager that records SIGTERM (from a scheduler) or SIGINT (Ctrl-C), so that a run can stop between steps.

    After the first signal, SIGINT interrupts the run immediately. Further SIGTERMs are ignored: a scheduler and a
    launcher may both send SIGTERM, and the second signal may arrive while the checkpoint is being written.
    """

    def __init__(self) -> None:
        self.signal = 0  # number of the last signal, or 0

    def __enter__(self) -> "StopRequest":
        self._handlers = {number: signal.signal(number, self._record) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, self._handlers[signal.SIGINT])
