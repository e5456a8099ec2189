# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends `profile live`, also while it is busy."""

import asyncio
import os
import signal

import pytest

from controller.runtime.profiling.live import asked_to_stop

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_during_a_long_fit_is_not_lost_among_the_passes(number):
    loop, came = asyncio.get_running_loop(), []
    before = signal.getsignal(number)
    with asked_to_stop() as stop:
        for one in range(20_000):  # passes that wait for the loop, each with a byte in its pipe
            loop.call_soon_threadsafe(came.append, one)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 30)
    assert len(came) == 20_000
    assert signal.getsignal(number) == before
