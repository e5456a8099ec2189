# SPDX-License-Identifier: Apache-2.0
"""One router among its replicas: owns some of the queues, asks the others for places in theirs.

Owns: membership and what follows from it, telling our books and taking in the others'. Does not
own: Redis's ways (redis_store.py), links (links.py), the queues. Degrades to what is known here:

- Redis away: members and owners stay as they are while their links are up; the others' books
  grow stale and are dropped; all comes back with Redis.
- A member away or frozen: its link is down within 1.5 s, and its queues are served here until
  the membership, without it, gives them to somebody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from controller.costs.model import TableCost
from controller.routing import replica_state
from controller.routing.ownership import Owners
from controller.routing.replica_state import DecodeBooks, RemoteStates, ReplicaState, TaskState
from controller.routing.units import unit
from controller.runtime.replicas.asks import Asked, Given
from controller.runtime.replicas.links import Dialer, Link
from controller.runtime.replicas.redis_store import Addresses, RedisStore
from controller.runtime.replicas.sessions import Sessions
from controller.runtime.replicas.wire import WIRE, Ask, Done, Granted, Hello, Message, Refused
from controller.runtime.router.shared_queues import SharedQueues
from controller.runtime.router.tickets import Ticket

logger = logging.getLogger(__name__)

_AWAY = (RedisError, OSError, asyncio.TimeoutError)
_MOST_PAUSE_S = 2.0


class Books(Protocol):
    """What of this router's decode side the others shall know, and what of theirs it takes in."""

    def tell(self, now_s: float) -> tuple[DecodeBooks, ...]: ...

    def hear(self, books: Mapping[int, DecodeBooks], now_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Wall-clock periods of the group."""

    period_s: float
    """Between two tellings."""
    stale_s: float
    """After which a replica's books count no more."""
    host: str
    """Address on which this replica listens, as the others reach it."""


class ReplicaGroup:
    """`run` until cancelled. Single-threaded, on the event loop."""

    def __init__(
        self,
        name: str,
        store: RedisStore,
        settings: GroupSettings,
        queues: SharedQueues,
        costs: TableCost,
        books: Books,
        sessions: Sessions,
        now: Callable[[], float],
        changed: Callable[[int], None],
    ) -> None:
        """`now` is the router's clock; `changed(replicas)` is called when members come or go."""
        self.name = name
        self._store = store
        self._settings = settings
        self._queues = queues
        self._costs = costs
        self._books = books
        self._sessions = sessions
        self._now = now
        self._changed = changed
        self._owners = Owners([name])
        self._remote = RemoteStates(settings.stale_s)
        self._asked = Asked(queues)
        self._links: dict[str, Link] = {}
        self._given: dict[Link, Given] = {}
        self._dialers: dict[str, asyncio.Task[None]] = {}
        self._shown: dict[str, set[int]] = {}
        self._expected: dict[str, set[int]] = {}
        self._number = 0
        self._address = ""
        self._left = False
        self.redis_up = False
        queues.share(self)

    @property
    def replicas(self) -> int:
        """Members, this one included."""
        return len(self._owners.replicas)

    @property
    def links(self) -> int:
        """Other members that can be asked now."""
        return len(self._links)

    @property
    def places(self) -> tuple[int, int]:
        """(places of ours at others, places of others here)."""
        return len(self._asked), sum(map(len, self._given.values()))

    def stale_s(self) -> float | None:
        """Age of the oldest books of another replica that count; None without any."""
        return self._remote.age_s(self._now())

    def owner_of(self, unit_id: int) -> str | None:
        owner = self._owners.of(unit_id)
        return owner if owner in self._links else None

    def ask(self, owner: str, ticket: Ticket, now_s: float) -> None:
        self._asked.ask(self._links[owner], ticket, now_s)
        others = self.replicas - 1
        self._expected.setdefault(owner, set()).add(ticket.worker_id)
        self._queues.expect(
            ticket.worker_id,
            TaskState(
                asked_by="",
                uncached=others * ticket.uncached_tokens,
                predicted_s=others * ticket.predicted_s,
                due_in_s=0.0,
                arrived_ago_s=0.0,
                urgency=ticket.wish.urgency,
                flies=False,
            ),
            now_s,
        )

    def done(self, ticket: Ticket) -> None:
        self._asked.done(ticket)

    async def run(self) -> None:
        """Listen, tell, hear; leaves the group when cancelled."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._incoming, self._settings.host, 0)
        port = server.sockets[0].getsockname()[1]
        self._address = f"{self._settings.host}:{port}"
        hearing = asyncio.create_task(self._hear())
        try:
            await self._tell()
        finally:
            self._left = True
            hearing.cancel()
            for task in self._dialers.values():
                task.cancel()
            server.close()
            for link in list(self._given):
                link.close()
            await self._store.leave(self.name)
            await self._store.close()

    def _incoming(self) -> Link:
        def opened(link: Link) -> None:
            self._given[link] = Given(self._queues, self._costs, link, self._now)

        def lost(link: Link) -> None:
            self._given.pop(link).lost()

        return Link(self._said, lost, opened)

    def _said(self, link: Link, message: Message) -> None:
        """One of the others asks, or gives up."""
        if isinstance(message, Hello):
            link.peer = message.replica
            link.send(Hello(self.name, WIRE))
        elif isinstance(message, Ask):
            self._given[link].ask(message)
        elif isinstance(message, Done):
            self._given[link].done(message)

    def _answered(self, link: Link, message: Message) -> None:
        """One of the others answers what we asked."""
        if isinstance(message, Granted):
            self._asked.granted(message, self._now())
        elif isinstance(message, Refused):
            self._asked.refused(message, self._now())

    def _link_changed(self, replica: str, link: Link | None) -> None:
        before = self._links.pop(replica, None)
        if link is not None:
            self._links[replica] = link
        elif before is not None:
            self._asked.lost(before)
            logger.warning("replicas.link_down peer=%s: its queues are served here", replica)
        self._queues.reown(self._now())

    async def _tell(self) -> None:
        """Signs of life and our books, every period; Redis's failures cost nothing but time."""
        pause_s = self._settings.period_s
        while True:
            try:
                self._joined(await self._beat())
                pause_s = self._settings.period_s
                self._redis(True)
            except _AWAY as error:
                self._redis(False, error)
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            self._drop_stale()
            await asyncio.sleep(pause_s)

    async def _beat(self) -> Addresses:
        """In a task of its own: Redis's client may swallow a cancellation, `wait` does not."""
        beat = asyncio.ensure_future(self._store.beat(self.name, self._address, self._state()))
        try:
            await asyncio.wait({beat})
        finally:
            beat.cancel()
        return beat.result()

    def _state(self) -> bytes:
        now_s = self._now()
        self._number += 1
        state = ReplicaState(
            self.name,
            self._number,
            self._queues.states(self.name, now_s),
            self._books.tell(now_s),
            self._sessions.take(),
        )
        return replica_state.encode(state)

    def _redis(self, up: bool, error: BaseException | None = None) -> None:
        if up == self.redis_up:
            return
        self.redis_up = up
        if up:
            logger.warning("replicas.redis_up replicas=%d", self.replicas)
        else:
            logger.error("replicas.redis_away error=%s: going on with what is known here", error)

    def _joined(self, members: Addresses) -> None:
        """Who is a member now: one that can still be asked is, whatever Redis has forgotten."""
        names = sorted({*members, *self._links, self.name})
        if tuple(names) == self._owners.replicas:
            return
        self._owners = Owners(names)
        self._remote.forget_all_but(names)
        for name in [n for n in self._dialers if n not in names]:
            self._dialers.pop(name).cancel()
        for name, address in members.items():
            if name != self.name and name not in self._dialers:
                dialer = Dialer(name, address, self.name, self._answered, self._link_changed)
                self._dialers[name] = asyncio.create_task(dialer.run())
        logger.warning("replicas.members count=%d", len(names))
        self._queues.reown(self._now())
        self._books.hear(self._remote.decode_books(self._now()), self._now())
        self._changed(len(names))

    async def _hear(self) -> None:
        """The others' books as they come."""
        while not self._left:
            try:
                async with contextlib.aclosing(self._store.listen()) as raws:
                    async for raw in raws:
                        self._heard(raw)
            except _AWAY:
                await asyncio.sleep(self._settings.period_s)

    def _heard(self, raw: bytes) -> None:
        state = replica_state.decode(raw)
        if state is None or state.replica == self.name:
            return
        now_s = self._now()
        if state.replica in self._owners.replicas and self._remote.take(state, now_s):
            self._take_in(state, now_s)

    def _take_in(self, state: ReplicaState, now_s: float) -> None:
        gone = self._shown.pop(state.replica, set())
        shown = self._shown[state.replica] = set()
        for lane in state.lanes:
            unit_id = unit(lane.worker_id, lane.rank)
            if self._owners.of(unit_id) == state.replica:
                others = [task for task in lane.tasks if task.asked_by != self.name]
                self._queues.mirror(unit_id, others, now_s)
                shown.add(unit_id)
        for unit_id in (gone | self._expected.pop(state.replica, set())) - shown:
            self._queues.mirror(unit_id, (), now_s)
        self._books.hear(self._remote.decode_books(now_s), now_s)
        for session, worker_id in state.sessions:
            self._sessions.adopt(session, worker_id)

    def _drop_stale(self) -> None:
        now_s = self._now()
        old = self._remote.expired(now_s)
        for state in old:
            for unit_id in self._shown.pop(state.replica, ()):
                self._queues.mirror(unit_id, (), now_s)
        if old:
            self._books.hear(self._remote.decode_books(now_s), now_s)
