# SPDX-License-Identifier: Apache-2.0
"""One prefill's place in the queues, and one worker's queue: what `queues.py` keeps books of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from controller.costs.model import TableCost
from controller.estimation.windows import MeanWindow
from controller.routing.fairness import FairShare
from controller.routing.units import worker_of

Terms = Callable[[int], tuple[int, float]]
"""(uncached tokens, predicted seconds) of a prefill at a worker."""
_NEVER_S = 1e9


def terms_of(costs: TableCost, prompt_tokens: int, cached: Mapping[int, int]) -> Terms:
    """Those of one prompt, of which workers have `cached` tokens."""

    def terms(unit_id: int) -> tuple[int, float]:
        known = min(cached.get(unit_id, 0), prompt_tokens - 1)
        return prompt_tokens - known, costs.prefill_s(known, prompt_tokens - known)

    return terms


class WorkerGoneError(Exception):
    """The worker left while a prefill waited for it or ran on it."""


class TooLateError(Exception):
    """Early rejection: the prefill cannot be in time any more."""

    def __init__(self) -> None:
        super().__init__("its TTFT limit cannot be met any more (ordering.reject)")


class GoesLocalError(Exception):
    """The prefill has chosen again while it waited (`batch`): its decode worker computes it."""


@dataclass(frozen=True, slots=True)
class Again:
    """What a waiting prefill wants when it is asked again."""

    worker_id: int
    uncached: int
    """Tokens that this worker has to compute."""
    predicted_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What a prefill wants of the queues; seconds on the router's clock."""

    arrival_s: float
    due_s: float = np.inf
    """Latest end of the prefill for a first token in time."""
    urgency: int = 0
    jump_s: float = 0.0
    prompt_tokens: int = 0
    tenant: str | None = None
    cached: Mapping[int, int] | None = None
    """Tokens of it that workers have in their caches."""
    terms: Terms | None = None
    """What it would be elsewhere; None: it stays where it was placed."""
    only: frozenset[int] | None = None
    """Workers that may serve it; None: all."""
    again: Callable[[], Again | None] | None = None
    """Its choice if it were to choose now, None: local. Called while it is in no queue."""
    asked_by: str | None = None
    """The replica whose request it is; None: it is ours."""

    def due_in_s(self, now_s: float) -> float:
        """Time left until then, as other replicas are told it: finite."""
        return min(self.due_s - now_s, _NEVER_S)


class Ticket:
    """One prefill's place at one worker; the worker may change until it is granted."""

    __slots__ = (
        "failed",
        "granted",
        "joined_s",
        "moved",
        "predicted_s",
        "row",
        "tag_s",
        "uncached_tokens",
        "wish",
        "worker_id",
    )

    def __init__(
        self,
        worker_id: int,
        row: int,
        joined_s: float,
        uncached_tokens: int,
        predicted_s: float,
        wish: Wish,
    ) -> None:
        self.worker_id = worker_id
        self.row = row
        self.joined_s = joined_s
        self.uncached_tokens = uncached_tokens
        """What its worker has to compute, in `predicted_s` seconds."""
        self.predicted_s = predicted_s
        self.wish = wish
        self.moved = 0
        self.failed = False
        """Released because its worker did not do it."""
        self.tag_s: float | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def may_go_to(self, worker_id: int) -> bool:
        """Whether another worker could serve it."""
        only = self.wish.only
        return self.wish.terms is not None and (only is None or worker_of(worker_id) in only)


class Lane:
    """One worker's queue; with `owner`, another replica serves it and is asked for grants."""

    def __init__(
        self,
        worker_id: int,
        number: int,
        window_s: float,
        tokens: int,
        weights: Mapping[str, float],
    ) -> None:
        self.worker_id = worker_id
        self.number = number
        self.tickets: dict[int, Ticket] = {}  # by row: waiting and in flight
        self.mirrored: list[int] = []  # rows of other replicas' work
        self.ttft = MeanWindow(window_s)
        self.bound_tokens = tokens
        self.shares = FairShare(weights) if weights else None
        self.owner: str | None = None

    def take(self, ticket: Ticket, donor: Lane, uncached: int, predicted_s: float) -> None:
        """It waits here from here on, as what it is to this worker; its row has moved already."""
        ticket.uncached_tokens, ticket.predicted_s = uncached, predicted_s
        if donor is not self:
            del donor.tickets[ticket.row]
            self.tickets[ticket.row] = ticket
            ticket.worker_id, ticket.moved = self.worker_id, ticket.moved + 1


class QueueOwners(Protocol):
    """Who serves which queue, when there are several routers."""

    def owner_of(self, unit_id: int) -> str | None:
        """The other replica that serves it now; None: we do."""
        ...

    def ask(self, owner: str, ticket: Ticket, now_s: float) -> None:
        """A prefill of ours waits for a queue of `owner`'s."""
        ...

    def done(self, ticket: Ticket) -> None:
        """It has given its place up, or has ended."""
        ...


class Alone:
    """One router: every queue is its own."""

    def owner_of(self, unit_id: int) -> str | None:
        return None

    def ask(self, owner: str, ticket: Ticket, now_s: float) -> None: ...

    def done(self, ticket: Ticket) -> None: ...
