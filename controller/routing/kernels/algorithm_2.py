# SPDX-License-Identifier: Apache-2.0
"""AMPD's prefill reordering (arXiv 2602.14516, section 4, Algorithm 2, Eq. 3 and Eq. 4).

Owns: the best permutation of the first w tasks of a queue, and putting the queue in that order.
Does not own: when it is asked (at every dequeue: choice.py).

    C(k) = sum over j <= k of t_pre(p_j)                                     (Eq. 3)
    S(p) = count of k with now + C(k) <= due(p_k)                            (Eq. 4)
    the first p with the largest S that postpones nobody who was postponed w times

due = T_enq + TTFT limit: with it Eq. 4 is the paper's (now - T_enq) + C(k) <= limit. Permutations
are tried in lexicographic order, so queue order comes first and ties stay first come, first
served. Postponed means: later in p than in the queue.
"""

from __future__ import annotations

from typing import Any

from controller.costs.compiled import compiled
from controller.routing.kernels.orderings import MOST_WINDOW
from controller.types import IntArray

ROOM = 3 * MOST_WINDOW
"""Numbers that `best_order` needs: rows, permutation, best permutation."""


@compiled
def next_permutation(p: IntArray) -> bool:
    """The next one in lexicographic order, in place; False after the last."""
    i = p.size - 2
    while i >= 0 and p[i] > p[i + 1]:
        i -= 1
    if i < 0:
        return False
    j = p.size - 1
    while p[j] < p[i]:
        j -= 1
    p[i], p[j] = p[j], p[i]
    low, high = i + 1, p.size - 1
    while low < high:
        p[low], p[high] = p[high], p[low]
        low, high = low + 1, high - 1
    return True


@compiled
def on_time_count(items: Any, rows: IntArray, p: IntArray, now_s: float) -> int:
    """Eq. 3 and Eq. 4 of one permutation."""
    done_s, count = now_s, 0
    for k in p:
        done_s += items[rows[k]].predicted_s
        count += done_s <= items[rows[k]].due_s
    return count


@compiled
def keeps_caps(items: Any, rows: IntArray, p: IntArray, cap: int) -> bool:
    """Whether nobody who was postponed `cap` times is postponed again."""
    for place in range(p.size):
        if place > p[place] and items[rows[p[place]]].postponed >= cap:
            return False
    return True


@compiled
def best_order(items: Any, head: int, window: int, now_s: float, room: IntArray) -> int:
    """The best permutation of the first tasks, into `room`; returns how many tasks these are."""
    n, i = 0, head
    while i >= 0 and n < window:
        room[n] = i
        n, i = n + 1, items[i].next
    rows, p, best = room[:n], room[n : 2 * n], room[2 * n : 3 * n]
    for k in range(n):
        p[k] = best[k] = k
    most = on_time_count(items, rows, p, now_s)
    while next_permutation(p):
        if most == n:
            break
        count = on_time_count(items, rows, p, now_s)
        if count > most and keeps_caps(items, rows, p, window):
            most = count
            for k in range(n):
                best[k] = p[k]
    return n


@compiled
def apply_order(items: Any, lane: Any, n: int, room: IntArray) -> None:
    """Put the first n tasks in the order that `best_order` left in `room`; count postponements."""
    if n == 0:
        return
    rows, best = room[:n], room[2 * n : 3 * n]
    after = items[rows[n - 1]].next
    before = -1
    for place in range(n):
        i = rows[best[place]]
        items[i].postponed += place > best[place]
        items[i].prev = before
        if before >= 0:
            items[before].next = i
        else:
            lane.queue_head = i
        before = i
    items[before].next = after
    if after >= 0:
        items[after].prev = before
    else:
        lane.queue_tail = before
