# SPDX-License-Identifier: Apache-2.0
"""Late binding: a worker that has become free takes over what waits longest elsewhere.

Owns: which waiting prefill it takes, and whether that is better off there. Does not own: which
workers may draw, granting (queues.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.routing.waiting import WaitingPrefills
from controller.runtime.router.tickets import Lane, Ticket
from controller.types import IntArray

_NO_BOUND = 1 << 62


def draw(
    waiting: WaitingPrefills,
    lane: Lane,
    rows: IntArray,
    lanes: Mapping[int, Lane],
    now_s: float,
    forget: Callable[[Lane, Ticket, float], None],
) -> bool:
    """A worker with room and nothing of its own waiting takes one over; False: there is none.

    Only a prefill that ends earlier here than where it waits: nobody is worse off. `rows` are our
    own lanes, `lanes` all of them by row.
    """
    queued, flying, tokens, busy_s = waiting.state(lane.number, now_s)
    if queued or (flying and tokens >= lane.bound_tokens):
        return False
    number = waiting.fullest(rows, lane.number, now_s)
    if number < 0:
        return False
    donor = lanes[number]
    row, _ = waiting.look(number, now_s, _NO_BOUND)
    ticket = donor.tickets.get(row)
    if ticket is None or not ticket.may_go_to(lane.worker_id):
        return False
    if ticket.granted.done():  # nobody waits for it any more
        forget(donor, ticket, now_s)
        return True
    assert ticket.wish.terms is not None  # or it might not go
    uncached, predicted_s = ticket.wish.terms(lane.worker_id)
    _, _, _, donor_busy_s = waiting.state(number, now_s)
    fits = not flying or tokens + uncached <= lane.bound_tokens
    if not fits or busy_s + predicted_s >= donor_busy_s + ticket.predicted_s:
        return False
    waiting.move(lane.number, row, uncached, predicted_s, now_s)
    lane.take(ticket, donor, uncached, predicted_s)
    return True
