# SPDX-License-Identifier: Apache-2.0
"""Several routers behind one stock frontend, over a real Redis; one of them dies, then Redis."""

import asyncio
import json
import os
import signal
import time

import pytest
from test_e2e_failures import load_with_kill, statuses

from controller.config import RedisConfig

pytestmark = pytest.mark.e2e


def counted(text, family):
    """Sum of a counter's samples in a scrape."""
    lines = [line for line in text.splitlines() if line.startswith(f"dynamo_equilibrium_{family}")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def metrics(it, replica):
    name = f"router-{replica}.json" if replica else "router.json"
    facts = json.loads((it.deployment.run_dir / name).read_text())
    async with it.http.get(f"http://127.0.0.1:{facts['metrics_port']}/metrics") as response:
        return await response.text()


async def until(condition, what, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if await condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def two(attachment, redis_server, **more):
    redis = RedisConfig(url=redis_server.url)
    return {
        "router__attachment": attachment,
        "router__policy": "toll",
        "router__replicas": 2,
        "router__redis": redis,
        "prefill__workers": 2,
        **more,
    }


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_two_routers_share_the_work_and_one_may_die(launch, redis_server, attachment):
    async with launch(**two(attachment, redis_server)) as it:

        async def see_each_other():
            texts = [await metrics(it, k) for k in (0, 1)]
            return all(counted(text, "replica_links ") == 1 for text in texts)

        await until(see_each_other, "links between the routers")
        owned = [counted(await metrics(it, k), "owned_queues ") for k in (0, 1)]
        assert sum(owned) == 2
        answers = await asyncio.gather(*(it.chat(f"{k} " + "word " * 100) for k in range(40)))
        assert [a["status"] for a in answers] == [200] * 40
        served = [counted(await metrics(it, k), "route_decisions_total") for k in (0, 1)]
        assert sum(served) == 40 and min(served) > 0
        answers = await load_with_kill(it, "router-1", seconds=8.0)
        failed = [sent for sent, answer in answers if answer["status"] != 200]
        # What was inside the dead router is lost unless the frontend migrates it.
        assert all(1.0 <= sent <= 3.0 for sent in failed), failed
        assert len(failed) <= 6
        assert statuses(answers, start=3.1) == [200] * len(statuses(answers, start=3.1))

        async def back():
            return counted(await metrics(it, 0), "replicas ") == 2

        await until(back, "the restarted router is a member again")


async def test_no_request_fails_when_redis_dies_or_hangs(launch, redis_server):
    async with launch(**two("broker", redis_server)) as it:

        async def load(seconds):
            tasks, end = [], time.monotonic() + seconds
            while time.monotonic() < end:
                tasks.append(asyncio.create_task(it.chat(f"{len(tasks)} " + "word " * 100)))
                await asyncio.sleep(0.15)
            return [(await task)["status"] for task in tasks]

        running = asyncio.create_task(load(7.0))
        await asyncio.sleep(1.0)
        os.kill(redis_server.process.pid, signal.SIGSTOP)
        await asyncio.sleep(2.0)
        os.kill(redis_server.process.pid, signal.SIGCONT)
        await asyncio.sleep(1.0)
        redis_server.kill()

        async def noticed():
            return all([counted(await metrics(it, k), "redis_up ") == 0 for k in (0, 1)])

        await until(noticed, "both say that Redis is away")
        redis_server.start()

        async def recovered():
            return all([counted(await metrics(it, k), "redis_up ") == 1 for k in (0, 1)])

        await until(recovered, "both say that it is back")
        assert set(await running) == {200}


async def test_a_killed_router_comes_back_and_is_routed_to(launch):
    async with launch(decode__workers=1) as it:
        assert (await it.chat("hello"))["status"] == 200
        os.kill(it.deployment.process("router").pid, signal.SIGKILL)
        before = (it.deployment.run_dir / "router.json").stat().st_mtime_ns

        async def announced():
            return (it.deployment.run_dir / "router.json").stat().st_mtime_ns != before

        await until(announced, "a new router", 20)

        async def routed():
            decided = len(it.decisions())
            answer = await it.chat("hello again")
            return answer["status"] == 200 and len(it.decisions()) > decided

        await until(routed, "a request through it")
