# SPDX-License-Identifier: Apache-2.0
"""The books of the prefills that a live router holds back or has sent: compiled, row by row.

Owns: joining, leaving, moving and flying of tasks, and what their sums say of a lane. Does not own:
the arrays (controller.routing.waiting), who goes first (choice.py), the clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.costs.compiled import compiled
from controller.routing.kernels import choice, forecast, lanes
from controller.routing.kernels.estimates import queue_s
from controller.routing.kernels.orderings import Ordering
from controller.routing.kernels.revision import doubtful
from controller.types import FloatArray, IntArray


@compiled
def clear(rows: Any, lane: int) -> None:
    row = rows[lane]
    row.queue_head = row.queue_tail = row.late_head = row.late_tail = -1
    row.fly_head = row.fly_tail = -1
    row.queued = row.lates = row.flying = 0
    row.wait_tokens = row.fly_tokens = 0
    row.late_s = row.credit = row.wait_s = row.fly_s = row.since_s = 0.0
    row.ttft_s, row.ttft_until_s = np.nan, np.inf


@compiled
def describe(tasks: Any, i: int, arrival_s: float, uncached: int, urgency: int) -> None:
    task = tasks[i]
    task.arrival_s, task.uncached, task.urgency = arrival_s, uncached, urgency
    task.postponed = task.late = task.kept = task.flies = 0
    task.lane = task.next = task.prev = -1
    task.asked_s = -np.inf


@compiled
def join(
    tasks: Any,
    rows: Any,
    lane: int,
    i: int,
    kind: int,
    predicted_s: float,
    due_s: float,
    now_s: float,
    jump_s: float,
) -> None:
    task, row = tasks[i], rows[lane]
    task.predicted_s, task.due_s, task.lane = predicted_s, due_s, lane
    task.joined_s, task.queued_s, task.asked_s = now_s, now_s - jump_s, now_s
    lanes.join(tasks, row, i, kind)
    row.wait_s += predicted_s
    row.wait_tokens += task.uncached


@compiled
def leave(tasks: Any, rows: Any, i: int, now_s: float) -> None:
    task = tasks[i]
    if task.lane < 0:
        return
    row = rows[task.lane]
    if task.flies:
        land(tasks, row, i, now_s)
    else:
        lanes.leave(tasks, row, i)
        waited(row, task)
    task.lane = -1


@compiled
def waited(row: Any, task: Any) -> None:
    row.wait_s = row.wait_s - task.predicted_s if row.queued + row.lates > 0 else 0.0
    row.wait_tokens -= task.uncached


@compiled
def land(tasks: Any, row: Any, i: int, now_s: float) -> None:
    before, after = tasks[i].prev, tasks[i].next
    if before >= 0:
        tasks[before].next = after
    else:
        row.fly_head = after
    if after >= 0:
        tasks[after].prev = before
    else:
        row.fly_tail = before
    row.flying -= 1
    row.fly_tokens -= tasks[i].uncached
    row.fly_s = row.fly_s - tasks[i].predicted_s if row.flying > 0 else 0.0
    row.since_s = now_s
    tasks[i].flies = 0


@compiled
def fly(tasks: Any, row: Any, i: int, now_s: float) -> None:
    task = tasks[i]
    task.prev, task.next, task.flies = row.fly_tail, -1, 1
    if row.fly_tail >= 0:
        tasks[row.fly_tail].next = i
    else:
        row.fly_head = i
    row.fly_tail = i
    if row.flying == 0:
        row.since_s = now_s
    row.flying += 1
    row.fly_tokens += task.uncached
    row.fly_s += task.predicted_s


@compiled
def fly_at_once(tasks: Any, rows: Any, lane: int, i: int, predicted_s: float, now_s: float) -> None:
    task = tasks[i]
    task.predicted_s, task.lane, task.joined_s = predicted_s, lane, now_s
    fly(tasks, rows[lane], i, now_s)


@compiled
def flown_s(row: Any, now_s: float) -> float:
    return queue_s(0.0, row.fly_s, row.since_s, now_s)


@compiled
def look(
    tasks: Any,
    rows: Any,
    lane: int,
    kind: int,
    window: int,
    late_share: float,
    max_wait_s: float,
    cap: int,
    now_s: float,
    most_tokens: int,
    room: IntArray,
) -> tuple[int, int]:
    row = rows[lane]
    if row.queued + row.lates == 0:
        return -1, 0
    rule = Ordering(kind, window, late_share, max_wait_s, cap)
    i, ordered = choice.look(tasks, row, rule, now_s, flown_s(row, now_s), room)
    if row.flying > 0 and row.fly_tokens + tasks[i].uncached > most_tokens:
        return -1, 0
    return i, ordered


@compiled
def send(
    tasks: Any,
    rows: Any,
    kind: int,
    window: int,
    late_share: float,
    max_wait_s: float,
    cap: int,
    i: int,
    ordered: int,
    now_s: float,
    room: IntArray,
) -> None:
    row = rows[tasks[i].lane]
    rule = Ordering(kind, window, late_share, max_wait_s, cap)
    choice.send(tasks, row, rule, i, ordered, now_s, room)
    waited(row, tasks[i])
    fly(tasks, row, i, now_s)


@compiled
def set_window(rows: Any, lane: int, ttft_s: float, until_s: float) -> None:
    rows[lane].ttft_s, rows[lane].ttft_until_s = ttft_s, until_s


@compiled
def since_s(tasks: Any, row: Any) -> float:
    """When the oldest head of its lists joined; infinite: it is empty."""
    oldest_s = np.inf
    for head in (row.fly_head, row.queue_head, row.late_head):
        if head >= 0:
            oldest_s = min(oldest_s, tasks[head].joined_s)
    return oldest_s


@compiled
def oldest_age_s(tasks: Any, rows: Any, now_s: float) -> float:
    oldest_s = now_s
    for k in range(rows.size):
        if rows[k].queued + rows[k].lates + rows[k].flying > 0:
            oldest_s = min(oldest_s, since_s(tasks, rows[k]))
    return now_s - oldest_s


@compiled
def pool(
    tasks: Any,
    rows: Any,
    which: IntArray,
    now_s: float,
    work_s: FloatArray,
    tokens: IntArray,
    ttft_s: FloatArray,
) -> bool:
    stale = False
    for k in range(which.size):
        row = rows[which[k]]
        work_s[k] = queue_s(row.wait_s, row.fly_s, row.since_s, now_s)
        tokens[k] = row.wait_tokens + row.fly_tokens
        stale |= row.ttft_until_s <= now_s
        ttft_s[k] = row.ttft_s
        if np.isnan(row.ttft_s) and row.queued + row.lates + row.flying > 0:
            ttft_s[k] = max(0.0, now_s - since_s(tasks, row))
    return stale


@compiled
def forecasts(
    tasks: Any,
    rows: Any,
    which: IntArray,
    kind: int,
    window: int,
    late_share: float,
    max_wait_s: float,
    cap: int,
    i: int,
    now_s: float,
    queued_s: float,
    due_s: float,
    cv: float,
    predicted_s: FloatArray,
    misses: FloatArray,
    end_s: FloatArray,
) -> None:
    rule = Ordering(kind, window, late_share, max_wait_s, cap)
    tasks[i].due_s, tasks[i].queued_s = due_s, queued_s
    for k in range(which.size):
        row = rows[which[k]]
        tasks[i].predicted_s = predicted_s[k]
        busy_s = flown_s(row, now_s)
        cost, end_s[k], odds = forecast.with_one_more(tasks, row, rule, now_s, busy_s, cv, i)
        misses[k] = cost + 1.0 - odds


@compiled
def move(
    tasks: Any,
    rows: Any,
    lane: int,
    i: int,
    kind: int,
    uncached: int,
    predicted_s: float,
    now_s: float,
) -> None:
    """A waiting task goes to another lane, with the age that it has."""
    leave(tasks, rows, i, now_s)
    task, row = tasks[i], rows[lane]
    task.uncached, task.predicted_s, task.lane = uncached, predicted_s, lane
    lanes.join(tasks, row, i, kind)
    row.wait_s += predicted_s
    row.wait_tokens += uncached


@compiled
def ask_next(
    tasks: Any,
    rows: Any,
    lane: int,
    kind: int,
    window: int,
    late_share: float,
    max_wait_s: float,
    cap: int,
    now_s: float,
) -> int:
    """Who of a lane chooses again next at this instant, out of its queue for that; -1: nobody."""
    rule = Ordering(kind, window, late_share, max_wait_s, cap)
    i = doubtful(tasks, rows[lane], rule, now_s + flown_s(rows[lane], now_s), now_s)
    if i >= 0:
        tasks[i].asked_s = now_s
        leave(tasks, rows, i, now_s)
    return i


@compiled
def set_due(tasks: Any, i: int, due_s: float) -> None:
    tasks[i].due_s = due_s


@compiled
def fullest(rows: Any, which: IntArray, but: int, now_s: float) -> int:
    """The lane in which something waits and whose work takes longest, `but` left out; -1: none."""
    best, most_s = -1, -1.0
    for k in range(which.size):
        lane = which[k]
        row = rows[lane]
        if lane == but or row.queued + row.lates == 0:
            continue
        work_s = queue_s(row.wait_s, row.fly_s, row.since_s, now_s)
        if work_s > most_s:
            best, most_s = lane, work_s
    return best


@compiled
def state(rows: Any, lane: int, now_s: float) -> tuple[int, int, int, float]:
    """(waiting tasks, flying tasks, flying tokens, time until what flies has ended)."""
    row = rows[lane]
    return row.queued + row.lates, row.flying, row.fly_tokens, flown_s(row, now_s)
