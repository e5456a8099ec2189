# SPDX-License-Identifier: Apache-2.0
"""Places in queues, asked for and given, between replicas.

Owns: which of our tickets wait at whom (`Asked`), and which of our places others hold (`Given`).
Does not own: the links, the queues' rules. Whoever's link breaks loses its places at once, so
nothing is held for the dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from controller.costs.model import TableCost
from controller.routing.units import rank_of, unit, worker_of
from controller.runtime.replicas.links import Link
from controller.runtime.replicas.wire import Ask, Done, Granted, Refused
from controller.runtime.router.shared_queues import SharedQueues
from controller.runtime.router.tickets import Ticket, TooLateError, WorkerGoneError, terms_of


class Asked:
    """Our tickets at other replicas."""

    def __init__(self, queues: SharedQueues) -> None:
        self._queues = queues
        self._numbers = count()
        self._by_number: dict[int, tuple[Ticket, Link]] = {}
        self._by_row: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def ask(self, link: Link, ticket: Ticket, now_s: float) -> None:
        """Ask the owner of its queue."""
        number = next(self._numbers)
        self._by_number[number] = (ticket, link)
        self._by_row[id(ticket)] = number
        link.send(_ask(number, ticket, now_s))

    def done(self, ticket: Ticket) -> None:
        """It has left; any other ticket is no matter."""
        number = self._by_row.pop(id(ticket), None)
        if number is not None:
            _, link = self._by_number.pop(number)
            link.send(Done(number, ticket.failed))

    def granted(self, message: Granted, now_s: float) -> None:
        """The owner says yes."""
        known = self._by_number.get(message.number)
        if known is not None:
            unit_id = unit(message.worker_id, message.rank)
            self._queues.granted_elsewhere(
                known[0], unit_id, message.uncached, message.predicted_s, now_s
            )

    def refused(self, message: Refused, now_s: float) -> None:
        """It cannot be in time, or the owner knows no such queue: then we send it ourselves."""
        known = self._by_number.get(message.number)
        if known is None or known[0].granted.done():
            return
        ticket, _ = known
        if message.late:
            ticket.granted.set_exception(TooLateError())
            return
        self._queues.granted_elsewhere(
            ticket, ticket.worker_id, ticket.uncached_tokens, ticket.predicted_s, now_s
        )

    def lost(self, link: Link) -> None:
        """A link is down: its owner holds nothing of ours any more."""
        for number in [n for n, (_, at) in self._by_number.items() if at is link]:
            ticket, _ = self._by_number.pop(number)
            self._by_row.pop(id(ticket), None)


class Given:
    """Places in our queues that one other replica holds."""

    def __init__(
        self, queues: SharedQueues, costs: TableCost, link: Link, now: Callable[[], float]
    ) -> None:
        self._queues = queues
        self._costs = costs
        self._link = link
        self._now = now
        self._tickets: dict[int, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def ask(self, ask: Ask) -> None:
        """Queue it; the answer goes out when it is its turn."""
        now_s = self._now()
        if self._queues.owner(unit(ask.worker_id, ask.rank)) is not None:
            self._link.send(Refused(ask.number, late=False))  # not ours, as we see it
            return
        cached = {unit(w, rank): tokens for w, rank, tokens in ask.cached}
        try:
            ticket = self._queues.enqueue(
                unit(ask.worker_id, ask.rank),
                ask.uncached,
                ask.predicted_s,
                now_s,
                arrival_s=now_s - ask.arrived_ago_s,
                due_s=now_s + ask.due_in_s,
                urgency=ask.urgency,
                jump_s=ask.jump_s,
                prompt_tokens=ask.prompt_tokens,
                tenant=ask.tenant,
                cached=cached,
                terms=terms_of(self._costs, ask.prompt_tokens, cached),
                only=None if ask.only is None else frozenset(ask.only),
                asked_by=self._link.peer,
            )
        except WorkerGoneError:
            self._link.send(Refused(ask.number, late=False))
            return
        self._tickets[ask.number] = ticket
        ticket.granted.add_done_callback(lambda granted: self._answer(ask.number, ticket, granted))

    def _answer(self, number: int, ticket: Ticket, granted: asyncio.Future[None]) -> None:
        if granted.cancelled():
            return
        error = granted.exception()
        if error is not None:
            self._tickets.pop(number, None)
            self._link.send(Refused(number, late=isinstance(error, TooLateError)))
            return
        unit_id = ticket.worker_id
        place = worker_of(unit_id), rank_of(unit_id)
        self._link.send(Granted(number, *place, ticket.uncached_tokens, ticket.predicted_s))

    def done(self, message: Done) -> None:
        """The asker has no more need of it."""
        ticket = self._tickets.pop(message.number, None)
        if ticket is not None:
            self._queues.release(ticket, self._now(), message.failed)

    def lost(self) -> None:
        """The asker is gone: so are its places."""
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            self._queues.release(ticket, self._now())


def _ask(number: int, ticket: Ticket, now_s: float) -> Ask:
    wish = ticket.wish
    return Ask(
        number=number,
        worker_id=worker_of(ticket.worker_id),
        rank=rank_of(ticket.worker_id),
        uncached=ticket.uncached_tokens,
        predicted_s=ticket.predicted_s,
        due_in_s=wish.due_in_s(now_s),
        arrived_ago_s=now_s - wish.arrival_s,
        urgency=wish.urgency,
        jump_s=wish.jump_s,
        prompt_tokens=max(1, wish.prompt_tokens),
        tenant=wish.tenant,
        cached=tuple((worker_of(w), rank_of(w), n) for w, n in (wish.cached or {}).items() if n),
        only=None if wish.only is None else tuple(sorted(wish.only)),
    )
