# SPDX-License-Identifier: Apache-2.0
"""The same group over a real Redis: slow, restarted, gone; a replica that dies without a word."""

import asyncio
import os
import signal

import pytest
from replicas_kit import Replica, linked, until

from controller.runtime.replicas.redis_store import RedisStore

pytestmark = pytest.mark.integration

WORKERS = tuple(range(1, 9))


def store(server, ttl_s=1.0):
    return RedisStore(server.url, "test", ttl_s)


@pytest.fixture
async def pair(unit_costs, redis_server):
    replicas = [Replica(n, store(redis_server), unit_costs, WORKERS) for n in ("a", "b")]
    await linked(*replicas)
    yield redis_server, replicas
    for replica in replicas:
        await replica.stop()


async def granted_everywhere(replicas):
    """Every replica can use every worker."""
    for replica in replicas:
        for worker in WORKERS:
            ticket = replica.join(worker, 100)
            await asyncio.wait_for(ticket.granted, 3)
            replica.leave(ticket)


async def test_two_routers_share_the_queues(pair):
    _, replicas = pair
    owned = [w for replica in replicas for w in replica.owns(WORKERS)]
    assert sorted(owned) == sorted(WORKERS)
    await granted_everywhere(replicas)


async def test_a_killed_redis_stops_nobody_and_a_new_one_is_found(pair):
    server, replicas = pair
    before = [r.owns(WORKERS) for r in replicas]
    server.kill()
    await until(lambda: not any(r.group.redis_up for r in replicas), "they notice")
    await granted_everywhere(replicas)
    assert [r.owns(WORKERS) for r in replicas] == before
    server.start()
    await until(lambda: all(r.group.redis_up for r in replicas), "they find it", 10)
    await linked(*replicas)
    assert [r.owns(WORKERS) for r in replicas] == before
    await until(lambda: all(r.group.stale_s() is not None for r in replicas), "books again", 10)


async def test_a_redis_that_hangs_delays_no_prefill(pair):
    server, replicas = pair
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(0.1)
        await asyncio.wait_for(granted_everywhere(replicas), 2)
        await until(lambda: not any(r.group.redis_up for r in replicas), "they notice", 10)
        await asyncio.wait_for(granted_everywhere(replicas), 2)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    await until(lambda: all(r.group.redis_up for r in replicas), "it goes on", 10)


async def test_a_router_starts_without_redis_and_joins_when_it_comes(unit_costs, redis_server):
    redis_server.kill()
    replicas = [Replica(n, store(redis_server), unit_costs, WORKERS) for n in ("a", "b")]
    await granted_everywhere(replicas)
    redis_server.start()
    await until(lambda: all(r.group.links == 1 for r in replicas), "they find each other", 10)
    for replica in replicas:
        await replica.stop()


async def test_who_gives_no_sign_of_life_is_no_member_any_more(redis_server):
    dead, alive = store(redis_server, 0.3), store(redis_server, 0.3)
    await dead.beat("dead", "127.0.0.1:1", b"")
    assert set(await alive.beat("alive", "127.0.0.1:2", b"")) == {"dead", "alive"}
    await asyncio.sleep(0.4)
    assert set(await alive.beat("alive", "127.0.0.1:2", b"")) == {"alive"}
    await alive.leave("alive")
    assert set(await dead.beat("dead", "127.0.0.1:1", b"")) == {"dead"}
    await alive.close()
    await dead.close()
