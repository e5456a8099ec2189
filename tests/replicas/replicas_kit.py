# SPDX-License-Identifier: Apache-2.0
"""Router replicas in one process: real queues, groups and links on loopback; Redis real or not."""

from __future__ import annotations

import asyncio
import contextlib
import time

from controller.routing.inflight import InFlightBound
from controller.runtime.replicas.group import GroupSettings, ReplicaGroup
from controller.runtime.replicas.sessions import Sessions
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.shared_queues import SharedQueues


class Exchange:
    """Stands for Redis between groups of one process; `up` False: nobody gets an answer."""

    def __init__(self):
        self.up = True
        self.members = {}
        self.states = {}
        self.ears = {}

    def store(self):
        return FakeStore(self)


class FakeStore:
    def __init__(self, exchange):
        self._exchange = exchange
        self._queue = asyncio.Queue()

    async def beat(self, replica, address, state):
        if not self._exchange.up:
            raise ConnectionError("away")
        host, _, port = address.rpartition(":")
        self._exchange.members[replica] = (host, int(port))
        self._exchange.ears[self] = self._queue
        for queue in self._exchange.ears.values():
            queue.put_nowait(state)
        return dict(self._exchange.members)

    async def listen(self):
        while True:
            yield await self._queue.get()

    async def leave(self, replica):
        self._exchange.members.pop(replica, None)
        self._exchange.ears.pop(self, None)

    async def close(self):
        pass


class Replica:
    """One router's shared part; `await replica.stop()` ends it."""

    def __init__(self, name, store, costs, workers, tokens=1000, period_s=0.02):
        self.queues = SharedQueues(InFlightBound(tokens, 1), 10)
        self.decode = DecodeState(10)
        self.decode.sync((101, 102))
        self.sessions = Sessions()
        self.counts = []
        self.group = ReplicaGroup(
            name,
            store,
            GroupSettings(period_s, 40 * period_s, "127.0.0.1"),
            self.queues,
            costs,
            self.decode,
            self.sessions,
            time.monotonic,
            self._changed,
        )
        self.queues.sync(workers)
        self.task = asyncio.create_task(self.group.run())

    def _changed(self, replicas):
        self.counts.append(replicas)
        self.decode.among(replicas)

    def join(self, worker, tokens, **more):
        """A prefill of our own."""
        now_s = time.monotonic()
        seconds = tokens / 1000
        return self.queues.enqueue(
            worker, tokens, seconds, now_s, prompt_tokens=tokens, cached={}, **more
        )

    def leave(self, ticket):
        self.queues.release(ticket, time.monotonic())

    def owns(self, workers):
        return [w for w in workers if self.queues.owner(w) is None]

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def until(condition, what, seconds=5.0):
    """Wait for something that other tasks bring about."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


async def linked(*replicas):
    """All see each other."""
    others = len(replicas) - 1
    await until(
        lambda: all(r.group.links == others and r.group.replicas == others + 1 for r in replicas),
        "links between all replicas",
    )
