# SPDX-License-Identifier: Apache-2.0
"""Who of those that wait may choose again: the `batch` rule's joint assignment.

Owns: which task is asked next. Does not own: the choice itself, which is that of `toll`.

What waits at one instant is a frozen batch. There `toll` is a marginal-contribution utility, so
that tasks which choose again one after another, each its best place given the others', only ever
raise expected attainment (kernels/toll.py); where nobody wants to move any more, the batch is in
an equilibrium. Asked are those who are not expected in time where they wait: whoever is, can
gain nothing for itself. Each is asked once an instant and at most MOST_ASKED are, so the way to
the equilibrium may take several instants.
"""

from __future__ import annotations

from typing import Any

from controller.costs.compiled import compiled
from controller.routing.kernels.forecast import is_kept
from controller.routing.kernels.moore_hodgson import keep_on_time
from controller.routing.kernels.orderings import MOORE_HODGSON, Ordering

MOST_ASKED = 16


@compiled
def doubtful(items: Any, lane: Any, rule: Ordering, start_s: float, now_s: float) -> int:
    """The first of a queue that is not expected in time and was not asked at this instant; or -1.

    `start_s`: when the worker is free.
    """
    if rule.kind == MOORE_HODGSON:
        keep_on_time(items, lane.queue_head, start_s, rule.window)
    done_s = start_s
    i = lane.queue_head
    while i >= 0:
        end_s = done_s + items[i].predicted_s
        kept = is_kept(items[i], rule.kind, end_s)
        if kept:
            done_s = end_s
        if items[i].asked_s < now_s and not (kept and end_s <= items[i].due_s):
            return int(i)
        i = items[i].next
    return -1
