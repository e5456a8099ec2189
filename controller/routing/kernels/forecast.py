# SPDX-License-Identifier: Apache-2.0
"""What a queue is worth under the ordering in force: who will be in time, when a task ends.

Owns: expected on-time counts under uncertain predictions, with and without one more task. Does
not own: the orderings themselves, what is made of it (toll.py).

Predicted times carry independent relative errors of standard deviation `cv`, so the end of a
prefill behind others has the variance cv^2 * (sum of the squares of all times before it). With
cv = 0 a task is in time or not.
"""

from __future__ import annotations

import math
from typing import Any

from controller.costs.compiled import compiled
from controller.routing.kernels.choice import sorts_out
from controller.routing.kernels.lanes import join, leave
from controller.routing.kernels.moore_hodgson import keep_on_time
from controller.routing.kernels.orderings import MOORE_HODGSON, Ordering

_ROOT_2 = math.sqrt(2.0)
_SURE = 72.0
"""Square of 8.5 standard deviations: beyond, a chance is 0 or 1 in double precision."""


@compiled
def chance(margin_s: float, variance_s2: float) -> float:
    """Probability that a normal error of this variance does not eat up the margin."""
    if margin_s * margin_s >= _SURE * variance_s2:
        return 1.0 if margin_s >= 0.0 else 0.0
    return 0.5 * math.erfc(-margin_s / (_ROOT_2 * math.sqrt(variance_s2)))


@compiled
def expected_on_time(
    items: Any, lane: Any, rule: Ordering, start_s: float, variance_s2: float, cv: float, of: int
) -> tuple[float, float, float]:
    """(expected on-time tasks of the queue, predicted end of task `of`, its chance).

    `start_s` and its variance: when the worker is free. `of` = -1 asks for nobody. Whom the rule
    passes over ends after everybody who is kept, and after the late ones.
    """
    if rule.kind == MOORE_HODGSON:
        keep_on_time(items, lane.queue_head, start_s, rule.window)
    share = rule.late_share if lane.lates > 0 else 0.0
    pace = 1.0 / (1.0 - share)
    done_s, variance = start_s, variance_s2
    expected, of_end_s, of_chance, passed_s = 0.0, math.nan, 0.0, 0.0
    i = lane.queue_head
    while i >= 0:
        own_s = items[i].predicted_s * pace
        if is_kept(items[i], rule.kind, done_s + own_s):
            done_s += own_s
            variance += (cv * own_s) ** 2
            odds = chance(items[i].due_s - done_s, variance)
            expected += odds
            if i == of:
                of_end_s, of_chance = done_s, odds
        else:
            passed_s += own_s
        i = items[i].next
    if of >= 0 and math.isnan(of_end_s):
        of_end_s = done_s + passed_s + lane.late_s
    return expected, of_end_s, of_chance


@compiled
def is_kept(task: Any, kind: int, end_s: float) -> bool:
    if kind == MOORE_HODGSON:
        return bool(task.kept)
    return bool(not sorts_out(kind) or end_s <= task.due_s)


@compiled
def with_one_more(
    items: Any, lane: Any, rule: Ordering, now_s: float, busy_s: float, cv: float, i: int
) -> tuple[float, float, float]:
    """(on-time tasks that task i costs the others, its predicted end, its chance) in this lane.

    Task i is in no list; its `predicted_s` and `due_s` are those of this lane. `busy_s` is how
    long the worker still computes what it has.
    """
    start_s, variance_s2 = now_s + busy_s, (cv * busy_s) ** 2
    before = 0.0
    if lane.queued > 0:
        before = expected_on_time(items, lane, rule, start_s, variance_s2, cv, -1)[0]
    join(items, lane, i, rule.kind)
    after, end_s, odds = expected_on_time(items, lane, rule, start_s, variance_s2, cv, i)
    leave(items, lane, i)
    return before - (after - odds), end_s, odds
