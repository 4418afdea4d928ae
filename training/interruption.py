# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop, which the training loop answers between two steps."""

import signal
from types import FrameType


class StopRequest:
    """
    While entered, remembers SIGTERM (a scheduler) or SIGINT (Ctrl-C) instead of dying.

    A second SIGINT interrupts as usual. SIGTERM may come several times, from a scheduler and from a launcher that
    passes it on, while the checkpoint is being written: more of them change nothing.

    Attributes:
        signal (`int`): Number of the signal that came, 0 before.
    """

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> "StopRequest":
        self._handlers = {number: signal.signal(number, self._remember) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, self._handlers[signal.SIGINT])
