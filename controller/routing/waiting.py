# SPDX-License-Identifier: Apache-2.0
"""The prefills that a live router holds back or has sent, in the arrays that compiled rules read.

Owns: rows for tasks, lanes for workers, growing; what waits and what flies in each lane. Does not
own: the rules (routing/kernels), who awaits what (controller.runtime.router.queues), the clock.
The simulator keeps the same fields in its own records, so both run the same code.

Python reads no record here but through a compiled function: that is ten times cheaper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.costs.compiled import compiled
from controller.routing.kernels import choice, forecast, lanes
from controller.routing.kernels.algorithm_2 import ROOM
from controller.routing.kernels.estimates import queue_s
from controller.routing.kernels.orderings import Ordering
from controller.types import FloatArray, IntArray

TASK = np.dtype(
    [
        *lanes.TASK_FIELDS,
        ("arrival_s", "f8"),
        ("joined_s", "f8"),
        ("next", "i4"),
        ("prev", "i4"),
        ("urgency", "i4"),
        ("lane", "i4"),  # -1: in none
        ("flies", "i4"),
    ],
    align=True,
)
LANE = np.dtype(
    [
        *lanes.LANE_FIELDS,
        # What waits, and what was sent and has not ended.
        ("wait_s", "f8"),
        ("fly_s", "f8"),
        ("since_s", "f8"),  # when the first of what flies began, as far as is known
        ("wait_tokens", "i8"),
        ("fly_tokens", "i8"),
        ("flying", "i4"),
        ("fly_head", "i4"),
        ("fly_tail", "i4"),
        # Windowed TTFT as last read, and when it must be read again.
        ("ttft_s", "f8"),
        ("ttft_until_s", "f8"),
    ],
    align=True,
)
_FIRST = 64


class WaitingPrefills:
    """Tasks and lanes by number. Times are seconds on the caller's clock."""

    def __init__(self, rule: Ordering) -> None:
        self.rule = rule
        self.tasks: Any = np.zeros(0, TASK)
        self.lanes: Any = np.zeros(0, LANE)
        self._free_tasks: list[int] = []
        self._free_lanes: list[int] = []
        self._room = np.zeros(ROOM, np.int64)
        self._probe = self.new_task(0.0, 0)

    def open_lane(self) -> int:
        """A new, empty lane."""
        if not self._free_lanes:
            self.lanes = _longer(self.lanes, LANE, self._free_lanes)
        k = self._free_lanes.pop()
        _clear(self.lanes, k)
        return k

    def close_lane(self, lane: int) -> None:
        """Give a lane back; its tasks must have left."""
        self._free_lanes.append(lane)

    def new_task(self, arrival_s: float, uncached: int, urgency: int = 0) -> int:
        """A task in no lane."""
        if not self._free_tasks:
            self.tasks = _longer(self.tasks, TASK, self._free_tasks)
        i = self._free_tasks.pop()
        _describe(self.tasks, i, arrival_s, uncached, urgency)
        return i

    def forget(self, task: int, now_s: float) -> None:
        """Give a task's row back, out of its lane if it is in one."""
        _leave(self.tasks, self.lanes, task, now_s)
        self._free_tasks.append(task)

    def join(
        self,
        lane: int,
        task: int,
        predicted_s: float,
        due_s: float,
        now_s: float,
        jump_s: float = 0.0,
    ) -> None:
        """Wait in a lane; `predicted_s` and `due_s` are those of its worker."""
        _join(self.tasks, self.lanes, lane, task, self.rule.kind, predicted_s, due_s, now_s, jump_s)

    def look(self, lane: int, now_s: float, most_tokens: int) -> tuple[int, int]:
        """(task to send next or -1, what `send` wants to know about it).

        -1: nothing waits, or the next one must: with it more than `most_tokens` would fly. An
        idle worker always gets one.
        """
        return _look(self.tasks, self.lanes, lane, *self.rule, now_s, most_tokens, self._room)

    def send(self, task: int, ordered: int, now_s: float) -> None:
        """The task that the latest `look` has chosen leaves its queue and flies."""
        _send(self.tasks, self.lanes, *self.rule, task, ordered, now_s, self._room)

    def fly(self, lane: int, task: int, predicted_s: float, now_s: float) -> None:
        """A task that never waited is on its way."""
        _fly_at_once(self.tasks, self.lanes, lane, task, predicted_s, now_s)

    def late_head(self, lane: int) -> int:
        """The oldest task of a lane that cannot be in time any more; -1: none."""
        return int(self.lanes[lane]["late_head"])

    def set_window(self, lane: int, ttft_s: float, until_s: float) -> None:
        """A lane's windowed TTFT, NaN for none, and the instant from which it may differ."""
        _set_window(self.lanes, lane, ttft_s, until_s)

    def pool(self, rows: IntArray, now_s: float) -> tuple[FloatArray, IntArray, FloatArray, bool]:
        """Per lane: predicted time and tokens of all its work, its windowed TTFT.

        An empty window in front of a stuck queue is not slack: nothing has finished for a whole
        window, so the age of the oldest prefill is the least that the next sample can be; NaN
        without one. True: some windows are older than they may be.
        """
        work_s, ttft_s = np.empty(rows.size), np.empty(rows.size)
        tokens = np.empty(rows.size, np.int64)
        stale = _pool(self.tasks, self.lanes, rows, now_s, work_s, tokens, ttft_s)
        return work_s, tokens, ttft_s, stale

    def stale_windows(self, rows: IntArray, now_s: float) -> list[int]:
        """Places in `rows` whose window must be read again."""
        old = self.lanes["ttft_until_s"][rows] <= now_s
        return [int(k) for k in np.flatnonzero(old)]

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest task of all lanes; 0 without one."""
        return float(_oldest_age_s(self.tasks, self.lanes, now_s))

    def forecasts(
        self,
        rows: IntArray,
        predicted_s: FloatArray,
        due_s: float,
        now_s: float,
        cv: float,
        arrival_s: float = 0.0,
        urgency: int = 0,
        jump_s: float = 0.0,
    ) -> tuple[FloatArray, FloatArray]:
        """What one more task would do to each lane of `rows`: see kernels/forecast.py.

        (expected misses of all that wait there, its own with them; its predicted end): (lanes,).
        """
        misses, end_s = np.empty(rows.size), np.empty(rows.size)
        i = self._probe
        _describe(self.tasks, i, arrival_s, 0, urgency)
        _forecasts(
            self.tasks,
            self.lanes,
            rows,
            *self.rule,
            i,
            now_s,
            now_s - jump_s,
            due_s,
            cv,
            predicted_s,
            misses,
            end_s,
        )
        return misses, end_s


def _longer(old: Any, kind: np.dtype[Any], free: list[int]) -> Any:
    count = max(_FIRST, len(old))
    new = np.zeros(len(old) + count, kind)
    new[: len(old)] = old
    free.extend(range(len(new) - 1, len(old) - 1, -1))
    return new


@compiled
def _clear(rows: Any, lane: int) -> None:
    row = rows[lane]
    row.queue_head = row.queue_tail = row.late_head = row.late_tail = -1
    row.fly_head = row.fly_tail = -1
    row.queued = row.lates = row.flying = 0
    row.wait_tokens = row.fly_tokens = 0
    row.late_s = row.credit = row.wait_s = row.fly_s = row.since_s = 0.0
    row.ttft_s, row.ttft_until_s = np.nan, np.inf


@compiled
def _describe(tasks: Any, i: int, arrival_s: float, uncached: int, urgency: int) -> None:
    task = tasks[i]
    task.arrival_s, task.uncached, task.urgency = arrival_s, uncached, urgency
    task.postponed = task.late = task.kept = task.flies = 0
    task.lane = task.next = task.prev = -1
    task.asked_s = -np.inf


@compiled
def _join(
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
    task.joined_s, task.queued_s = now_s, now_s - jump_s
    lanes.join(tasks, row, i, kind)
    row.wait_s += predicted_s
    row.wait_tokens += task.uncached


@compiled
def _leave(tasks: Any, rows: Any, i: int, now_s: float) -> None:
    task = tasks[i]
    if task.lane < 0:
        return
    row = rows[task.lane]
    if task.flies:
        _land(tasks, row, i, now_s)
    else:
        lanes.leave(tasks, row, i)
        _waited(row, task)
    task.lane = -1


@compiled
def _waited(row: Any, task: Any) -> None:
    row.wait_s = row.wait_s - task.predicted_s if row.queued + row.lates > 0 else 0.0
    row.wait_tokens -= task.uncached


@compiled
def _land(tasks: Any, row: Any, i: int, now_s: float) -> None:
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
def _fly(tasks: Any, row: Any, i: int, now_s: float) -> None:
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
def _fly_at_once(
    tasks: Any, rows: Any, lane: int, i: int, predicted_s: float, now_s: float
) -> None:
    task = tasks[i]
    task.predicted_s, task.lane, task.joined_s = predicted_s, lane, now_s
    _fly(tasks, rows[lane], i, now_s)


@compiled
def _busy_s(row: Any, now_s: float) -> float:
    return queue_s(0.0, row.fly_s, row.since_s, now_s)


@compiled
def _look(
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
    i, ordered = choice.look(tasks, row, rule, now_s, _busy_s(row, now_s), room)
    if row.flying > 0 and row.fly_tokens + tasks[i].uncached > most_tokens:
        return -1, 0
    return i, ordered


@compiled
def _send(
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
    _waited(row, tasks[i])
    _fly(tasks, row, i, now_s)


@compiled
def _set_window(rows: Any, lane: int, ttft_s: float, until_s: float) -> None:
    rows[lane].ttft_s, rows[lane].ttft_until_s = ttft_s, until_s


@compiled
def _oldest_s(tasks: Any, row: Any) -> float:
    """When the oldest head of its lists joined; infinite: it is empty."""
    oldest_s = np.inf
    for head in (row.fly_head, row.queue_head, row.late_head):
        if head >= 0:
            oldest_s = min(oldest_s, tasks[head].joined_s)
    return oldest_s


@compiled
def _oldest_age_s(tasks: Any, rows: Any, now_s: float) -> float:
    oldest_s = now_s
    for k in range(rows.size):
        if rows[k].queued + rows[k].lates + rows[k].flying > 0:
            oldest_s = min(oldest_s, _oldest_s(tasks, rows[k]))
    return now_s - oldest_s


@compiled
def _pool(
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
            ttft_s[k] = max(0.0, now_s - _oldest_s(tasks, row))
    return stale


@compiled
def _forecasts(
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
        busy_s = _busy_s(row, now_s)
        cost, end_s[k], odds = forecast.with_one_more(tasks, row, rule, now_s, busy_s, cv, i)
        misses[k] = cost + 1.0 - odds
