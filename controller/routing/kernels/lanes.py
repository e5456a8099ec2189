# SPDX-License-Identifier: Apache-2.0
"""The queue in front of one prefill worker, as two linked lists in arrays of records.

Owns: joining, leaving, becoming late. Does not own: who goes first (choice.py), the records: the
live router (controller.routing.waiting) and the simulator (its REQUEST and WORKER) have their own.
A task has TASK_FIELDS and `next`, `prev` (places in its list, -1 at the ends), `arrival_s` and
`urgency` (strict priority: larger first); a lane has LANE_FIELDS.
"""

from __future__ import annotations

from typing import Any

from controller.costs.compiled import compiled
from controller.routing.kernels.orderings import EARLIEST_DEADLINE, MOORE_HODGSON, SHORTEST

TASK_FIELDS = (
    ("queued_s", "f8"),  # when it joined this queue, less what it may jump in first-come orders
    ("predicted_s", "f8"),  # predicted time of its prefill on this worker
    ("due_s", "f8"),  # latest end of that prefill for a first token in time
    ("uncached", "i4"),  # prompt tokens to compute
    ("postponed", "i4"),  # how often it was put back or passed
    ("late", "i4"),  # it is in the late list
    ("asked_s", "f8"),  # when it last chose anew (revision.py)
    ("kept", "i4"),  # scratch of Moore-Hodgson
)
LANE_FIELDS = (
    ("queue_head", "i4"),  # who may still be in time
    ("queue_tail", "i4"),
    ("queued", "i4"),
    ("late_head", "i4"),  # who cannot be, oldest first
    ("late_tail", "i4"),
    ("lates", "i4"),
    ("late_s", "f8"),  # predicted time of the late ones
    ("credit", "f8"),  # tokens that late work may take
)


@compiled
def stands_before(a: Any, b: Any, kind: int) -> bool:
    """Whether task a, already there, stays in front of the newcomer b."""
    if a.urgency != b.urgency:
        return bool(a.urgency > b.urgency)
    if kind in (EARLIEST_DEADLINE, MOORE_HODGSON):
        return bool(a.due_s <= b.due_s)
    if kind == SHORTEST:
        return bool(a.predicted_s <= b.predicted_s)
    return bool(a.queued_s <= b.queued_s)


@compiled
def join(items: Any, lane: Any, i: int, kind: int) -> None:
    """Into the queue: behind its equals, so ties stay first come, first served."""
    before = lane.queue_tail
    while before >= 0 and not stands_before(items[before], items[i], kind):
        before = items[before].prev
    after = lane.queue_head if before < 0 else items[before].next
    items[i].prev, items[i].next, items[i].late = before, after, 0
    if before >= 0:
        items[before].next = i
    else:
        lane.queue_head = i
    if after >= 0:
        items[after].prev = i
    else:
        lane.queue_tail = i
    lane.queued += 1


@compiled
def leave(items: Any, lane: Any, i: int) -> None:
    """Out of whichever list it is in."""
    before, after, late = items[i].prev, items[i].next, items[i].late
    if before >= 0:
        items[before].next = after
    elif late:
        lane.late_head = after
    else:
        lane.queue_head = after
    if after >= 0:
        items[after].prev = before
    elif late:
        lane.late_tail = before
    else:
        lane.queue_tail = before
    if late:
        lane.lates -= 1
        lane.late_s = lane.late_s - items[i].predicted_s if lane.lates else 0.0
    else:
        lane.queued -= 1


@compiled
def give_up(items: Any, lane: Any, i: int) -> None:
    """From the queue to the late list, which is in order of arrival."""
    leave(items, lane, i)
    before = lane.late_tail
    while before >= 0 and items[before].arrival_s > items[i].arrival_s:
        before = items[before].prev
    after = lane.late_head if before < 0 else items[before].next
    items[i].prev, items[i].next, items[i].late = before, after, 1
    if before >= 0:
        items[before].next = i
    else:
        lane.late_head = i
    if after >= 0:
        items[after].prev = i
    else:
        lane.late_tail = i
    lane.lates += 1
    lane.late_s += items[i].predicted_s


@compiled
def hopeless(task: Any, now_s: float) -> bool:
    """Whether it would be late even if its prefill began at once."""
    return bool(now_s + task.predicted_s > task.due_s)


@compiled
def oldest(items: Any, lane: Any) -> int:
    """The task of a lane that came first, -1 if it is empty. The late list knows its own."""
    best = lane.late_head
    i = lane.queue_head
    while i >= 0:
        if best < 0 or items[i].arrival_s < items[best].arrival_s:
            best = i
        i = items[i].next
    return int(best)
