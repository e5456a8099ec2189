# SPDX-License-Identifier: Apache-2.0
"""Which waiting prefill of a worker is sent next.

Owns: the choice by rule, fairness to late work, the books of both. Does not own: whether the
worker may have one more (controller.routing.inflight).

`look` changes nothing that matters: the caller may find that the one chosen must wait. `send`
makes it so. Fairness comes before the rule: what has waited `max_wait_s` or was passed `cap` times
goes first; late work gets `late_share` of the tokens while there is any, oldest first.
"""

from __future__ import annotations

from typing import Any

from controller.costs.compiled import compiled
from controller.routing.kernels.algorithm_2 import apply_order, best_order
from controller.routing.kernels.lanes import give_up, hopeless, leave, oldest
from controller.routing.kernels.moore_hodgson import keep_on_time
from controller.routing.kernels.orderings import (
    ALGORITHM_2,
    EARLIEST_DEADLINE,
    HOPELESS_LAST,
    MOORE_HODGSON,
    Ordering,
)
from controller.types import IntArray


@compiled
def sorts_out(kind: int) -> bool:
    """Whether a rule lets others pass what is hopeless."""
    return kind in (HOPELESS_LAST, EARLIEST_DEADLINE, MOORE_HODGSON)


@compiled
def look(
    items: Any, lane: Any, rule: Ordering, now_s: float, busy_s: float, room: IntArray
) -> tuple[int, int]:
    """(task to send next or -1, tasks in `room` that Algorithm 2 has ordered).

    `busy_s` is how long the worker still computes what it has; `room` has ROOM places.
    """
    overdue = _overdue(items, lane, rule, now_s)
    if overdue < 0 and rule.cap > 0 and rule.kind != ALGORITHM_2:
        overdue = _capped(items, lane, rule.cap)
    if overdue >= 0:
        return overdue, 0
    if lane.queue_head < 0:
        return int(lane.late_head), 0
    if lane.lates > 0 and lane.credit >= items[lane.late_head].uncached:
        return int(lane.late_head), 0
    if rule.kind == ALGORITHM_2:
        n = best_order(items, lane.queue_head, rule.window, now_s, room)
        return int(room[room[2 * n]]), n
    if sorts_out(rule.kind):
        return _in_time(items, lane, rule, now_s + busy_s), 0
    return int(lane.queue_head), 0


@compiled
def _overdue(items: Any, lane: Any, rule: Ordering, now_s: float) -> int:
    if rule.max_wait_s == float("inf"):
        return -1
    first = oldest(items, lane)
    if first >= 0 and now_s - items[first].arrival_s >= rule.max_wait_s:
        return first
    return -1


@compiled
def _capped(items: Any, lane: Any, cap: int) -> int:
    """The first to have joined of those that may not be passed again, -1: nobody."""
    best = -1
    for head in (lane.queue_head, lane.late_head):
        i = head
        while i >= 0:
            if items[i].postponed >= cap and (best < 0 or items[i].queued_s < items[best].queued_s):
                best = i
            i = items[i].next
    return int(best)


@compiled
def _passed(items: Any, lane: Any, queued_s: float) -> None:
    """One that joined at `queued_s` has been sent: it has passed who joined before."""
    for head in (lane.queue_head, lane.late_head):
        i = head
        while i >= 0:
            items[i].postponed += items[i].queued_s < queued_s
            i = items[i].next


@compiled
def _in_time(items: Any, lane: Any, rule: Ordering, start_s: float) -> int:
    """The first that can be in time; nobody can: the oldest of all."""
    if rule.kind == MOORE_HODGSON:
        keep_on_time(items, lane.queue_head, start_s, rule.window)
    i = lane.queue_head
    while i >= 0:
        if rule.kind == MOORE_HODGSON:
            if items[i].kept:
                return int(i)
        elif start_s + items[i].predicted_s <= items[i].due_s:
            return int(i)
        i = items[i].next
    return oldest(items, lane)


@compiled
def send(
    items: Any, lane: Any, rule: Ordering, i: int, n: int, now_s: float, room: IntArray
) -> None:
    """Take the task that `look` chose out of the lane, with what its choice says of the others."""
    if n > 0:
        apply_order(items, lane, n, room)
    late = items[i].late
    tokens = items[i].uncached
    leave(items, lane, i)
    if rule.cap > 0 and rule.kind != ALGORITHM_2:
        _passed(items, lane, items[i].queued_s)
    if sorts_out(rule.kind):
        _sort_out(items, lane, now_s)
    if lane.lates == 0:
        lane.credit = 0.0
    elif late:
        lane.credit = max(0.0, lane.credit - tokens)
    else:
        lane.credit += tokens * rule.late_share / (1.0 - rule.late_share)


@compiled
def _sort_out(items: Any, lane: Any, now_s: float) -> None:
    """The hopeless at the head of the queue become late: nobody looks at them again."""
    i = lane.queue_head
    while i >= 0 and hopeless(items[i], now_s):
        after = items[i].next
        give_up(items, lane, i)
        i = after
