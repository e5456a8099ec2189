# SPDX-License-Identifier: Apache-2.0
"""The silence rule, live: a prefill worker that hangs costs time, not requests.

The frontend ends a request, and leaves the worker that holds it alone for a while, when nothing
has been heard of it for `frontend.stream_timeout_s`. Every wait of a router ends before that.
"""

import asyncio
import contextlib
import os
import signal
import time

import pytest
from up_kit import make_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TIMEOUT_S = 6
STOCK = {"frontend__stream_timeout_s": TIMEOUT_S}
OURS = STOCK | {
    "router__max_wait_s": 1.5,
    "router__prefill_timeout_s": 2.5,
    "router__policy": "always_remote",
}
# Twenty seconds for a long prompt, two for the shortest one; connected and alive all the time.
SILENT = {"prefill__emulated__slowdown": 100.0}
LONG = "hold this prefill " * 200
FALLBACKS = {"prefill_failed", "prefill_pool_empty", "wait_limit"}


@contextlib.contextmanager
def frozen(it, name):
    """A worker that is there, listed and connected, and does not even take requests."""
    pid = it.deployment.process(name).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def timed(it, content):
    started = time.monotonic()
    answer = await it.chat(content, max_tokens=4)
    return answer["status"], time.monotonic() - started


async def until_it_prefills_remotely(it):
    """A frontend that has just listed a model may leave its first prompts to decode workers."""
    for number in range(20):
        status, seconds = await timed(it, f"{number}")
        assert status == 200
        if seconds > 1.0:  # a silent worker computed it
            return
    pytest.fail("no prompt ever went to the prefill worker")


async def until_the_router_is_asked(it):
    for number in range(20):
        assert (await timed(it, f"{number}"))[0] == 200
        if it.decisions():
            return len(it.decisions())
    pytest.fail("no prompt ever went to the router")


async def held(it, requests):
    """Long prompts at once, all answered in time by decode workers; why they were."""
    before = await until_the_router_is_asked(it)
    answers = await asyncio.gather(*(timed(it, f"{i} {LONG}") for i in range(requests)))
    assert [status for status, _ in answers] == [200] * requests
    assert max(seconds for _, seconds in answers) < TIMEOUT_S
    return [row["reason"] for row in it.decisions()[before:]]


def quarantines(it):
    return (it.deployment.run_dir / "logs" / "frontend.log").read_text().count("quarantining")


def test_the_limits_are_ones_that_a_deployment_file_may_have(tmp_path):
    config = make_config(tmp_path, **OURS)
    type(config).model_validate(config.model_dump(by_alias=True))


async def test_stock_ends_a_request_whose_prefill_is_silent(launch):
    """What the rule is for; without this the others would prove nothing."""
    async with launch(router__attachment="none", **STOCK, **SILENT) as it:
        await until_it_prefills_remotely(it)
        status, seconds = await timed(it, LONG)
        assert status == 500
        assert TIMEOUT_S - 1 < seconds < TIMEOUT_S + 4
        assert quarantines(it) == 1


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_a_held_prefill_is_answered_before_the_stream_times_out(launch, attachment):
    async with launch(router__attachment=attachment, **OURS, **SILENT) as it:
        # More than the in-flight bound lets out: some are sent, the rest wait in the queue.
        reasons = await held(it, 8)
        assert len(reasons) == 8
        assert set(reasons) <= FALLBACKS
        # Neither request nor router was given up by the frontend.
        assert quarantines(it) == 0
        assert (await timed(it, "after"))[0] == 200


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_a_frozen_prefill_worker_costs_no_request(launch, attachment):
    async with launch(router__attachment=attachment, **OURS) as it:
        await until_the_router_is_asked(it)
        with frozen(it, "prefill-0"):
            reasons = await held(it, 8)
        assert set(reasons) <= FALLBACKS
        assert quarantines(it) == 0


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_a_second_placement_has_only_the_time_that_the_first_one_left(launch, attachment):
    # Twice the prefill time-out is more than the frontend's; the sum of both limits is not.
    limits = OURS | {"router__max_wait_s": 0.5, "router__prefill_timeout_s": 3.5}
    both = {"router__attachment": attachment, "prefill__workers": 2}
    async with launch(**both, **limits, **SILENT) as it:
        assert set(await held(it, 1)) == {"wait_limit"}
        assert it.decisions()[-1]["reroutes"] == 1
