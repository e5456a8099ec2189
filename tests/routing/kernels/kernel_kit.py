# SPDX-License-Identifier: Apache-2.0
"""Queues of hand-made tasks, and what a perfect scheduler would do with them."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from controller.costs.compiled import compiled
from controller.routing.kernels import choice, forecast
from controller.routing.kernels.algorithm_2 import ROOM
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.routing.waiting import WaitingPrefills


class Queue:
    """One lane; tasks are (time, due) pairs or dictionaries of fields."""

    def __init__(self, rule: str, tasks=(), **settings) -> None:
        settings.setdefault("window", 3 if rule == "algorithm_2" else 256)
        self.waiting = WaitingPrefills(Ordering(ORDERINGS[rule], **settings))
        self.lane = self.waiting.open_lane()
        self.rows: list[int] = []
        self.room = np.zeros(ROOM, np.int64)
        for task in tasks:
            self.add(*task) if isinstance(task, tuple) else self.add(**task)

    def add(self, time_s, due_s, *, arrival_s=None, tokens=1, urgency=0, postponed=0) -> int:
        at_s = len(self.rows) * 1e-6 if arrival_s is None else arrival_s
        row = self.waiting.new_task(at_s, tokens, urgency)
        self.rows.append(row)
        self.waiting.join(self.lane, row, time_s, due_s, at_s)
        self.waiting.tasks[row]["postponed"] = postponed
        return len(self.rows) - 1

    def look(self, now_s=0.0, busy_s=0.0) -> int:
        row, self.ordered = _look(*self._arrays, float(now_s), float(busy_s), self.room)
        return self.rows.index(row) if row >= 0 else -1

    def send(self, now_s=0.0, busy_s=0.0) -> int:
        """Number of the task that is sent, -1 when nobody waits."""
        i = self.look(now_s, busy_s)
        if i >= 0:
            _send(*self._arrays, self.rows[i], self.ordered, float(now_s), self.room)
        return i

    def price(self, time_s, due_s, now_s=0.0, busy_s=0.0, cv=0.0):
        """(on-time tasks lost by the others, predicted end, chance) of one task more."""
        row = self.waiting.new_task(99.0, 1)
        self.waiting.tasks[row]["predicted_s"] = time_s
        self.waiting.tasks[row]["due_s"] = due_s
        self.waiting.tasks[row]["queued_s"] = 99.0
        return _with_one_more(*self._arrays, float(now_s), float(busy_s), float(cv), row)

    @property
    def _arrays(self):
        return self.waiting.tasks, self.waiting.lanes, self.lane, self.waiting.rule

    def drain(self, now_s=0.0) -> list[int]:
        """Numbers in the order in which a worker that does one after another gets them."""
        order = []
        while (i := self.send(now_s)) >= 0:
            order.append(i)
            now_s += float(self.task(i).predicted_s)
        return order

    def task(self, i):
        return self.waiting.tasks.view(np.recarray)[self.rows[i]]


def on_time(tasks, order) -> int:
    """How many (time, due) tasks are in time in this order."""
    done_s, count = 0.0, 0
    for i in order:
        done_s += tasks[i][0]
        count += done_s <= tasks[i][1]
    return count


def best_count(tasks, allowed=lambda order: True) -> int:
    """By enumeration."""
    orders = permutations(range(len(tasks)))
    return max(on_time(tasks, order) for order in orders if allowed(order))


@compiled
def _look(tasks, lanes, k, rule, now_s, busy_s, room):
    return choice.look(tasks, lanes[k], rule, now_s, busy_s, room)


@compiled
def _send(tasks, lanes, k, rule, i, ordered, now_s, room):
    choice.send(tasks, lanes[k], rule, i, ordered, now_s, room)


@compiled
def _with_one_more(tasks, lanes, k, rule, now_s, busy_s, cv, i):
    return forecast.with_one_more(tasks, lanes[k], rule, now_s, busy_s, cv, i)
