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

from controller.routing.kernels import books, lanes
from controller.routing.kernels.algorithm_2 import ROOM
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
        books.clear(self.lanes, k)
        return k

    def close_lane(self, lane: int) -> None:
        """Give a lane back; its tasks must have left."""
        self._free_lanes.append(lane)

    def new_task(self, arrival_s: float, uncached: int, urgency: int = 0) -> int:
        """A task in no lane."""
        if not self._free_tasks:
            self.tasks = _longer(self.tasks, TASK, self._free_tasks)
        i = self._free_tasks.pop()
        books.describe(self.tasks, i, arrival_s, uncached, urgency)
        return i

    def forget(self, task: int, now_s: float) -> None:
        """Give a task's row back, out of its lane if it is in one."""
        books.leave(self.tasks, self.lanes, task, now_s)
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
        books.join(
            self.tasks, self.lanes, lane, task, self.rule.kind, predicted_s, due_s, now_s, jump_s
        )

    def look(self, lane: int, now_s: float, most_tokens: int) -> tuple[int, int]:
        """(task to send next or -1, what `send` wants to know about it).

        -1: nothing waits, or the next one must: with it more than `most_tokens` would fly. An
        idle worker always gets one.
        """
        return books.look(self.tasks, self.lanes, lane, *self.rule, now_s, most_tokens, self._room)

    def send(self, task: int, ordered: int, now_s: float) -> None:
        """The task that the latest `look` has chosen leaves its queue and flies."""
        books.send(self.tasks, self.lanes, *self.rule, task, ordered, now_s, self._room)

    def fly(self, lane: int, task: int, predicted_s: float, now_s: float) -> None:
        """A task that never waited is on its way."""
        books.fly_at_once(self.tasks, self.lanes, lane, task, predicted_s, now_s)

    def move(self, lane: int, task: int, uncached: int, predicted_s: float, now_s: float) -> None:
        """A waiting task goes to another lane, whose worker computes `uncached` of its tokens."""
        books.move(self.tasks, self.lanes, lane, task, self.rule.kind, uncached, predicted_s, now_s)

    def ask_next(self, lane: int, now_s: float) -> int:
        """A task of a lane that is not expected in time and was not asked at this instant.

        It is out of its queue: `move` puts it where it wants to be. -1: nobody is left.
        """
        return int(books.ask_next(self.tasks, self.lanes, lane, *self.rule, now_s))

    def set_due(self, task: int, due_s: float) -> None:
        """Another deadline, for a task that is in no queue."""
        books.set_due(self.tasks, task, due_s)

    def fullest(self, rows: IntArray, but: int, now_s: float) -> int:
        """Of the lanes `rows` the one with most work in which something waits; -1: none."""
        return int(books.fullest(self.lanes, rows, but, now_s))

    def state(self, lane: int, now_s: float) -> tuple[int, int, int, float]:
        """(waiting tasks, flying tasks, flying tokens, seconds until what flies has ended)."""
        return books.state(self.lanes, lane, now_s)

    def start(self, lane: int, task: int, predicted_s: float, now_s: float) -> None:
        """A waiting task is on its way, whatever the order would say."""
        books.leave(self.tasks, self.lanes, task, now_s)
        books.fly_at_once(self.tasks, self.lanes, lane, task, predicted_s, now_s)

    def late_head(self, lane: int) -> int:
        """The oldest task of a lane that cannot be in time any more; -1: none."""
        return int(self.lanes[lane]["late_head"])

    def set_window(self, lane: int, ttft_s: float, until_s: float) -> None:
        """A lane's windowed TTFT, NaN for none, and the instant from which it may differ."""
        books.set_window(self.lanes, lane, ttft_s, until_s)

    def pool(self, rows: IntArray, now_s: float) -> tuple[FloatArray, IntArray, FloatArray, bool]:
        """Per lane: predicted time and tokens of all its work, its windowed TTFT.

        An empty window in front of a stuck queue is not slack: nothing has finished for a whole
        window, so the age of the oldest prefill is the least that the next sample can be; NaN
        without one. True: some windows are older than they may be.
        """
        work_s, ttft_s = np.empty(rows.size), np.empty(rows.size)
        tokens = np.empty(rows.size, np.int64)
        stale = books.pool(self.tasks, self.lanes, rows, now_s, work_s, tokens, ttft_s)
        return work_s, tokens, ttft_s, stale

    def stale_windows(self, rows: IntArray, now_s: float) -> list[int]:
        """Places in `rows` whose window must be read again."""
        old = self.lanes["ttft_until_s"][rows] <= now_s
        return [int(k) for k in np.flatnonzero(old)]

    def oldest_age_s(self, now_s: float) -> float:
        """Age of the oldest task of all lanes; 0 without one."""
        return float(books.oldest_age_s(self.tasks, self.lanes, now_s))

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
        books.describe(self.tasks, i, arrival_s, 0, urgency)
        books.forecasts(
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
