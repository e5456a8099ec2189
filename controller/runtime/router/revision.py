# SPDX-License-Identifier: Apache-2.0
"""`batch` at work: the prefills that wait in doubt choose again, one after another.

Owns: asking them, moving those that want to be elsewhere. Does not own: who is asked
(routing/kernels/revision.py), what they choose (the rule, through `Wish.again`), granting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from controller.routing.kernels.revision import MOST_ASKED
from controller.routing.waiting import WaitingPrefills
from controller.runtime.router.tickets import Again, GoesLocalError, Lane, Ticket

logger = logging.getLogger(__name__)


def revise(
    waiting: WaitingPrefills,
    lanes: Mapping[int, Lane],
    now_s: float,
    pump: Callable[[Lane, float], None],
    forget: Callable[[Lane, Ticket, float], None],
) -> int:
    """Ask them, in our own lanes; returns how many went to another worker.

    Who wants to be local learns it from GoesLocalError. Whoever cannot be asked stays.
    """
    left, moves = MOST_ASKED, 0
    for worker_id, lane in _ours(lanes):
        while left > 0 and (row := waiting.ask_next(lane.number, now_s)) >= 0:
            left -= 1
            ticket = lane.tickets.get(row)
            choice = _asked(ticket, worker_id, waiting, row)
            if choice is None:
                assert ticket is not None
                forget(lane, ticket, now_s)
                ticket.granted.set_exception(GoesLocalError())
                continue
            to = lanes.get(choice.worker_id)
            if to is None or to.owner is not None:
                to, choice = lane, _stays(worker_id, waiting, row)
            waiting.set_due(row, choice.due_s)
            waiting.move(to.number, row, choice.uncached, choice.predicted_s, now_s)
            if ticket is not None:
                moves += _follow(ticket, lane, to, choice)
            pump(to, now_s)
    return moves


def _ours(lanes: Mapping[int, Lane]) -> Iterable[tuple[int, Lane]]:
    return [(w, lane) for w, lane in lanes.items() if lane.owner is None]


def _asked(
    ticket: Ticket | None, worker_id: int, waiting: WaitingPrefills, row: int
) -> Again | None:
    """What it wants now; None: a local prefill. An error keeps it where it is."""
    if ticket is None or ticket.wish.again is None or ticket.granted.done():
        return _stays(worker_id, waiting, row)
    try:
        return ticket.wish.again()
    except Exception:
        # Another request's release has led here: it must not end for this.
        logger.exception("router.revision_failed")
        return _stays(worker_id, waiting, row)


def _stays(worker_id: int, waiting: WaitingPrefills, row: int) -> Again:
    task = waiting.tasks[row]
    return Again(worker_id, int(task["uncached"]), float(task["predicted_s"]), float(task["due_s"]))


def _follow(ticket: Ticket, lane: Lane, to: Lane, choice: Again) -> bool:
    ticket.uncached_tokens, ticket.predicted_s = choice.uncached, choice.predicted_s
    if to is lane:
        return False
    del lane.tickets[ticket.row]
    to.tickets[ticket.row] = ticket
    ticket.worker_id, ticket.moved = choice.worker_id, ticket.moved + 1
    return True
