# SPDX-License-Identifier: Apache-2.0
"""The linked lists that requests stand in; each links through fields of the request records.

Owns: running, unfinished prefills, decode legs without a token, waiting. Does not own: who joins
or leaves when. A request is in at most one list of each pair of link fields.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.compiled import kernel


@kernel
def append_running(req: Any, worker: Any, r: int) -> None:
    """As the most recently admitted."""
    tail = worker.run_tail
    req[r].prev, req[r].next = tail, -1
    if tail >= 0:
        req[tail].next = r
    else:
        worker.run_head = r
    worker.run_tail = r
    worker.running += 1
    worker.joins += 1
    req[r].joined = worker.joins


@kernel
def remove_running(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].prev, req[r].next
    if before >= 0:
        req[before].next = after
    else:
        worker.run_head = after
    if after >= 0:
        req[after].prev = before
    else:
        worker.run_tail = before
    worker.running -= 1


@kernel
def append_prefill(req: Any, worker: Any, r: int) -> None:
    """To the running requests that have not computed all of their prompt."""
    tail = worker.pre_tail
    req[r].peer_prev, req[r].peer_next = tail, -1
    if tail >= 0:
        req[tail].peer_next = r
    else:
        worker.pre_head = r
    worker.pre_tail = r
    worker.prefills += 1


@kernel
def remove_prefill(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].peer_prev, req[r].peer_next
    if before >= 0:
        req[before].peer_next = after
    else:
        worker.pre_head = after
    if after >= 0:
        req[after].peer_prev = before
    else:
        worker.pre_tail = before
    worker.prefills -= 1


@kernel
def append_fresh(req: Any, worker: Any, r: int) -> None:
    """To the decode legs that have their KV but no token yet."""
    tail = worker.fresh_tail
    req[r].peer_prev, req[r].peer_next = tail, -1
    if tail >= 0:
        req[tail].peer_next = r
    else:
        worker.fresh_head = r
    worker.fresh_tail = r


@kernel
def remove_fresh(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].peer_prev, req[r].peer_next
    if before >= 0:
        req[before].peer_next = after
    else:
        worker.fresh_head = after
    if after >= 0:
        req[after].peer_prev = before
    else:
        worker.fresh_tail = before


@kernel
def push_waiting(req: Any, worker: Any, r: int) -> None:
    """At its place: lower priority value first, then by arrival number.

    New requests belong at the end; a preempted one comes back under its old number.
    """
    priority, order = req[r].priority, req[r].order
    before = worker.wait_tail
    while before >= 0 and (
        req[before].priority > priority
        or (req[before].priority == priority and req[before].order > order)
    ):
        before = req[before].prev
    after = worker.wait_head if before < 0 else req[before].next
    req[r].prev, req[r].next = before, after
    if before >= 0:
        req[before].next = r
    else:
        worker.wait_head = r
    if after >= 0:
        req[after].prev = r
    else:
        worker.wait_tail = r
    worker.waiting += 1


@kernel
def remove_waiting(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].prev, req[r].next
    if before >= 0:
        req[before].next = after
    else:
        worker.wait_head = after
    if after >= 0:
        req[after].prev = before
    else:
        worker.wait_tail = before
    worker.waiting -= 1


@kernel
def append_pulling(req: Any, worker: Any, r: int) -> None:
    """By the end of the pull; equal ends in the order of admission."""
    ends = req[r].pulled_s
    before = worker.pull_tail
    while before >= 0 and req[before].pulled_s > ends:
        before = req[before].prev
    after = worker.pull_head if before < 0 else req[before].next
    req[r].prev, req[r].next = before, after
    if before >= 0:
        req[before].next = r
    else:
        worker.pull_head = r
    if after >= 0:
        req[after].prev = r
    else:
        worker.pull_tail = r
    worker.pulling += 1


@kernel
def remove_pulling(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].prev, req[r].next
    if before >= 0:
        req[before].next = after
    else:
        worker.pull_head = after
    if after >= 0:
        req[after].prev = before
    else:
        worker.pull_tail = before
    worker.pulling -= 1


@kernel
def append_pin(req: Any, worker: Any, r: int) -> None:
    """To the requests whose prompt lies here for a pull, by the time it is released."""
    ends = req[r].release_s
    before = worker.pin_tail
    while before >= 0 and req[before].release_s > ends:
        before = req[before].pin_prev
    after = worker.pin_head if before < 0 else req[before].pin_next
    req[r].pin_prev, req[r].pin_next = before, after
    if before >= 0:
        req[before].pin_next = r
    else:
        worker.pin_head = r
    if after >= 0:
        req[after].pin_prev = r
    else:
        worker.pin_tail = r


@kernel
def remove_pin(req: Any, worker: Any, r: int) -> None:
    before, after = req[r].pin_prev, req[r].pin_next
    if before >= 0:
        req[before].pin_next = after
    else:
        worker.pin_head = after
    if after >= 0:
        req[after].pin_prev = before
    else:
        worker.pin_tail = before
