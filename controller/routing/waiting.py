# SPDX-License-Identifier: Apache-2.0
"""The prefills that wait at the live router, in the arrays that the compiled rules work on.

Owns: rows for tasks, lanes for workers, growing. Does not own: the rules (routing/kernels), who
awaits what (controller.runtime.router.queues), the clock. The simulator keeps the same fields in
its own records, so both run the same code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.routing.kernels import choice, forecast, lanes
from controller.routing.kernels.algorithm_2 import ROOM
from controller.routing.kernels.compiled import compiled
from controller.routing.kernels.orderings import Ordering
from controller.types import IntArray

TASK = np.dtype(
    [
        ("arrival_s", "f8"),
        ("queued_s", "f8"),
        ("predicted_s", "f8"),
        ("due_s", "f8"),
        ("next", "i4"),
        ("prev", "i4"),
        ("uncached", "i4"),
        ("urgency", "i4"),
        ("postponed", "i4"),
        ("late", "i4"),
        ("kept", "i4"),
        ("lane", "i4"),  # -1: in none
    ],
    align=True,
)
LANE = np.dtype(
    [
        ("late_s", "f8"),
        ("credit", "f8"),
        ("queue_head", "i4"),
        ("queue_tail", "i4"),
        ("queued", "i4"),
        ("late_head", "i4"),
        ("late_tail", "i4"),
        ("lates", "i4"),
    ],
    align=True,
)
_FIRST = 64


class WaitingPrefills:
    """Tasks and lanes by number. Times are seconds on the caller's clock."""

    def __init__(self, rule: Ordering) -> None:
        self.rule = rule
        self.tasks: Any = np.zeros(0, TASK).view(np.recarray)
        self.lanes: Any = np.zeros(0, LANE).view(np.recarray)
        self._free_tasks: list[int] = []
        self._free_lanes: list[int] = []
        self._room = np.zeros(ROOM, np.int64)

    def open_lane(self) -> int:
        """A new, empty lane."""
        if not self._free_lanes:
            self.lanes = _longer(self.lanes, LANE, self._free_lanes)
        k = self._free_lanes.pop()
        lane = self.lanes[k]
        lane.queue_head = lane.queue_tail = lane.late_head = lane.late_tail = -1
        lane.queued = lane.lates = 0
        lane.late_s = lane.credit = 0.0
        return k

    def close_lane(self, lane: int) -> None:
        """Give a lane back; its tasks must have left."""
        self._free_lanes.append(lane)

    def new_task(self, arrival_s: float, uncached: int, urgency: int = 0) -> int:
        """A task in no lane."""
        if not self._free_tasks:
            self.tasks = _longer(self.tasks, TASK, self._free_tasks)
        i = self._free_tasks.pop()
        task = self.tasks[i]
        task.arrival_s, task.uncached, task.urgency = arrival_s, uncached, urgency
        task.postponed = task.late = task.kept = 0
        task.lane = task.next = task.prev = -1
        return i

    def forget(self, task: int) -> None:
        """Give a task's row back, out of its lane if it is in one."""
        if self.tasks[task].lane >= 0:
            _leave(self.tasks, self.lanes, task)
        self._free_tasks.append(task)

    def join(self, lane: int, task: int, predicted_s: float, due_s: float, now_s: float) -> None:
        """Wait in a lane; `predicted_s` and `due_s` are those of its worker."""
        row = self.tasks[task]
        row.predicted_s, row.due_s, row.queued_s, row.lane = predicted_s, due_s, now_s, lane
        _join(self.tasks, self.lanes, lane, task, self.rule.kind)

    def look(self, lane: int, now_s: float, busy_s: float) -> tuple[int, int]:
        """(task to send next or -1, what `send` wants to know about it)."""
        return _look(self.tasks, self.lanes, lane, self.rule, now_s, busy_s, self._room)

    def send(self, task: int, ordered: int, now_s: float) -> None:
        """The task that the latest `look` has chosen leaves its lane."""
        _send(self.tasks, self.lanes, self.rule, task, ordered, now_s, self._room)
        self.tasks[task].lane = -1

    def with_one_more(
        self,
        lane: int,
        task: int,
        predicted_s: float,
        due_s: float,
        now_s: float,
        busy_s: float,
        cv: float,
    ) -> tuple[float, float, float]:
        """What a task in no lane would cost this one: see kernels/forecast.py."""
        row = self.tasks[task]
        row.predicted_s, row.due_s = predicted_s, due_s
        return _with_one_more(self.tasks, self.lanes, lane, self.rule, now_s, busy_s, cv, task)


def _longer(old: Any, kind: np.dtype[Any], free: list[int]) -> Any:
    count = max(_FIRST, len(old))
    new = np.zeros(len(old) + count, kind).view(np.recarray)
    new[: len(old)] = old
    free.extend(range(len(new) - 1, len(old) - 1, -1))
    return new


@compiled
def _join(tasks: Any, rows: Any, lane: int, task: int, kind: int) -> None:
    lanes.join(tasks, rows[lane], task, kind)


@compiled
def _leave(tasks: Any, rows: Any, task: int) -> None:
    lanes.leave(tasks, rows[tasks[task].lane], task)
    tasks[task].lane = -1


@compiled
def _look(
    tasks: Any, rows: Any, lane: int, rule: Ordering, now_s: float, busy_s: float, room: IntArray
) -> tuple[int, int]:
    return choice.look(tasks, rows[lane], rule, now_s, busy_s, room)


@compiled
def _send(
    tasks: Any, rows: Any, rule: Ordering, task: int, ordered: int, now_s: float, room: IntArray
) -> None:
    choice.send(tasks, rows[tasks[task].lane], rule, task, ordered, now_s, room)


@compiled
def _with_one_more(
    tasks: Any,
    rows: Any,
    lane: int,
    rule: Ordering,
    now_s: float,
    busy_s: float,
    cv: float,
    task: int,
) -> tuple[float, float, float]:
    return forecast.with_one_more(tasks, rows[lane], rule, now_s, busy_s, cv, task)
