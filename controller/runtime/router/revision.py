# SPDX-License-Identifier: Apache-2.0
"""`batch` at work: the prefills that wait in doubt choose again, one after another.

Owns: asking them, moving those that want to be elsewhere. Does not own: who is asked
(routing/kernels/revision.py), what they choose (the rule, through `Wish.again`), granting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

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
) -> None:
    """Ask them, in our own lanes.

    Who wants to be local learns it from GoesLocalError. Whoever cannot be asked stays.
    """
    left = MOST_ASKED
    for lane in [each for each in lanes.values() if each.owner is None]:
        while left > 0 and (row := waiting.ask_next(lane.number, now_s)) >= 0:
            left -= 1
            ticket = lane.tickets.get(row)
            choice = _asked(ticket, lane.worker_id, waiting, row)
            if choice is None:
                assert ticket is not None
                forget(lane, ticket, now_s)
                ticket.granted.set_exception(GoesLocalError())
                continue
            to = lanes.get(choice.worker_id)
            if to is None or to.owner is not None:
                to, choice = lane, _stays(lane.worker_id, waiting, row)
            waiting.set_due(row, choice.due_s)
            waiting.move(to.number, row, choice.uncached, choice.predicted_s, now_s)
            if ticket is not None:
                to.take(ticket, lane, choice.uncached, choice.predicted_s)
            pump(to, now_s)


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
