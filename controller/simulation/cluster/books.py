# SPDX-License-Identifier: Apache-2.0
"""The router's own books: what waits and flies at each prefill worker, and windowed TTFT and ITL.

Owns: the sums behind Eq. 2's queue term, the in-flight list, the windows of Algorithm 1 (as
controller.runtime.router keeps them live). Does not own: decisions.
"""

from __future__ import annotations

import math
from typing import Any

from controller.routing.kernels.estimates import queue_s
from controller.routing.kernels.lanes import join, leave
from controller.simulation.cluster.clock import key, steps_s, steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import (
    FLY_S,
    FLY_TOKENS,
    FLYING,
    ORDERING,
    REPORT_DELAY_S,
    SINCE_S,
    WAIT_S,
    WAIT_TOKENS,
    WINDOW_S,
    State,
)


@kernel
def queue_up(s: State, w: int, r: int) -> None:
    """Into a prefill worker's queue at the router."""
    q = s.req[r]
    join(s.req, s.wrk[w], r, s.ctl[ORDERING])
    s.books[WAIT_S, w] += q.predicted_s
    s.seen[WAIT_TOKENS, w] += q.uncached


@kernel
def leave_queue(s: State, w: int, r: int) -> None:
    """Out of it, without being sent."""
    leave(s.req, s.wrk[w], r)
    waited(s, w, r)


@kernel
def waited(s: State, w: int, r: int) -> None:
    """The books of what waits, less this one."""
    waiting = s.wrk[w].queued + s.wrk[w].lates
    s.books[WAIT_S, w] = s.books[WAIT_S, w] - s.req[r].predicted_s if waiting else 0.0
    s.seen[WAIT_TOKENS, w] -= s.req[r].uncached


@kernel
def fly(s: State, w: int, r: int, now_s: float) -> None:
    """A prefill is sent to its worker."""
    worker, q = s.wrk[w], s.req[r]
    tail = worker.fly_tail
    q.fly_prev, q.fly_next = tail, -1
    if tail >= 0:
        s.req[tail].fly_next = r
    else:
        worker.fly_head = r
    worker.fly_tail = r
    if s.seen[FLYING, w] == 0:
        s.books[SINCE_S, w] = now_s
    s.seen[FLYING, w] += 1
    s.seen[FLY_TOKENS, w] += q.uncached
    s.books[FLY_S, w] += q.predicted_s


@kernel
def land(s: State, w: int, r: int, now_s: float) -> None:
    """A prefill that was sent has ended."""
    worker, q = s.wrk[w], s.req[r]
    if q.fly_prev >= 0:
        s.req[q.fly_prev].fly_next = q.fly_next
    else:
        worker.fly_head = q.fly_next
    if q.fly_next >= 0:
        s.req[q.fly_next].fly_prev = q.fly_prev
    else:
        worker.fly_tail = q.fly_prev
    s.seen[FLYING, w] -= 1
    s.seen[FLY_TOKENS, w] -= q.uncached
    s.books[FLY_S, w] = s.books[FLY_S, w] - q.predicted_s if s.seen[FLYING, w] else 0.0
    s.books[SINCE_S, w] = now_s


@kernel
def flying_s(s: State, w: int, now_s: float) -> float:
    """Predicted time until worker w has worked off what was sent to it."""
    return queue_s(0.0, s.books[FLY_S, w], s.books[SINCE_S, w], now_s)


@kernel
def add_sample(s: State, w: int, r: int, ttft_s: float) -> None:
    """A TTFT as the router saw it, at the prefill's end."""
    worker = s.wrk[w]
    if s.req[r].sampled >= 0:
        _drop_sample(s, r)  # of a prefill that was lost afterwards
    s.req[r].sampled = w
    s.req[r].sample_s, s.req[r].sample_next = ttft_s, -1
    if worker.sample_tail >= 0 and worker.samples > 0:
        s.req[worker.sample_tail].sample_next = r
    else:
        worker.sample_head = r
    worker.sample_tail = r
    worker.samples += 1
    worker.sample_sum_s += ttft_s


@kernel
def _drop_sample(s: State, r: int) -> None:
    """Take a request's sample out of its window, wherever it stands: rare, so it is searched."""
    worker = s.wrk[s.req[r].sampled]
    before, at = -1, worker.sample_head
    while at != r:
        before, at = at, s.req[at].sample_next
    if before < 0:
        worker.sample_head = s.req[r].sample_next
    else:
        s.req[before].sample_next = s.req[r].sample_next
    if worker.sample_tail == r:
        worker.sample_tail = before
    worker.samples -= 1
    worker.sample_sum_s -= s.req[r].sample_s


@kernel
def ttft_window_s(s: State, w: int, now_s: float) -> float:
    """Mean over the window; when it is empty, the age of the oldest prefill; NaN without one."""
    worker = s.wrk[w]
    while worker.samples > 0:
        r = worker.sample_head
        if s.req[r].prefilled_s > now_s - s.par[WINDOW_S]:
            break
        worker.sample_sum_s -= s.req[r].sample_s
        s.req[r].sampled = -1
        worker.sample_head = s.req[r].sample_next
        worker.samples -= 1
    if worker.samples > 0:
        return float(worker.sample_sum_s / worker.samples)
    worker.sample_sum_s = 0.0
    oldest = math.inf
    if worker.fly_head >= 0:
        oldest = s.req[worker.fly_head].queued_s
    if worker.queue_head >= 0:
        oldest = min(oldest, s.req[worker.queue_head].queued_s)
    if worker.late_head >= 0:
        oldest = min(oldest, s.req[worker.late_head].queued_s)
    return max(0.0, now_s - oldest) if oldest < math.inf else math.nan


@kernel
def itl_window_s(s: State, w: int, now_s: float) -> float:
    """Mean gap of decode w's tokens in the window: steps that ended in it, weighted by batch.

    As live the time of a step counts as one gap, also if it brings several tokens (a forward-pass
    report does not say how many). Reports come late by the delay, so the window ends that much
    earlier. NaN when it is empty.
    """
    worker = s.wrk[w]
    newest_s = now_s - s.par[REPORT_DELAY_S]
    _drop_old_steps(s, worker, newest_s - s.par[WINDOW_S])
    total_s, weight = 0.0, 0.0
    at, skip = worker.log_head, worker.log_cut
    while at >= 0:
        entry = s.log[at]
        ended = _ended_steps(entry, entry.n, newest_s)
        if ended > skip:
            total_s += (_sum_s(entry, ended) - _sum_s(entry, skip)) * entry.batch
            weight += float(ended - skip) * entry.batch
        at, skip = entry.next, 0
    if worker.busy and worker.in_batch > 0:
        ended = _ended_now(worker, newest_s)
        total_s += steps_s(worker.first_s, worker.slope_s, ended) * worker.in_batch
        weight += float(ended) * worker.in_batch
    return total_s / weight if weight > 0.0 else math.nan


@kernel
def _sum_s(entry: Any, n: int) -> float:
    return steps_s(entry.first_s, entry.slope_s, n)


@kernel
def _ended_steps(entry: Any, n: int, at_s: float) -> int:
    """How many of the first n logged steps have ended at `at_s` or before."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if entry.start_s + _sum_s(entry, middle) <= at_s:
            low = middle
        else:
            high = middle - 1
    return int(low)


@kernel
def _ended_now(worker: Any, at_s: float) -> int:
    """The same for the steps that are running."""
    n = steps_until(worker, key(at_s))
    while n > 0 and worker.start_s + steps_s(worker.first_s, worker.slope_s, n) > at_s:
        n -= 1
    return int(n)


@kernel
def _drop_old_steps(s: State, worker: Any, before_s: float) -> None:
    while worker.log_head >= 0:
        entry = s.log[worker.log_head]
        gone = _ended_steps(entry, entry.n, before_s)
        if gone < entry.n:
            worker.log_cut = max(worker.log_cut, gone)
            return
        worker.log_head = entry.next
        worker.log_cut = 0
