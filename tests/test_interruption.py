# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import os
import signal
from collections.abc import Iterator

import pytest

from training.interruption import StopRequest

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """As in a terminal: what runs in the background of a script is started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_remembered_and_a_second_ctrl_c_interrupts(number: int) -> None:
    with StopRequest() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_schedulers_and_launchers_may_both_send_sigterm() -> None:
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(known) for known in SIGNALS]
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(known) for known in SIGNALS] == before
