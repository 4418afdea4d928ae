# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import os
import signal

import pytest

from training.interruption import StopRequest

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_remembered_and_the_second_has_its_usual_effect(number: int) -> None:
    before = [signal.getsignal(known) for known in SIGNALS]
    with StopRequest() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number
        assert [signal.getsignal(known) for known in SIGNALS] == before


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(known) for known in SIGNALS]
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(known) for known in SIGNALS] == before
