# SPDX-License-Identifier: Apache-2.0
"""Three binary heaps: the ends of a worker's decodes, workers by next event, followers to arrive.

Owns: the heap orders. Does not own: what an entry means to its user.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.clock import NEVER
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import LATER, WORKERS_DUE, State

WIDTH = 3  # words of an entry in `mem`: last step, admission number, row


@kernel
def _before(mem: Any, a: int, b: int) -> bool:
    return bool(mem[a] < mem[b] or (mem[a] == mem[b] and mem[a + 1] < mem[b + 1]))


@kernel
def _move(mem: Any, to: int, source: int) -> None:
    mem[to] = mem[source]
    mem[to + 1] = mem[source + 1]
    mem[to + 2] = mem[source + 2]


@kernel
def _sink(mem: Any, base: int, count: int, at: int, end: int, joined: int, row: int) -> None:
    """Place an entry at or below position `at`."""
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        place = base + WIDTH * child
        if child + 1 < count and _before(mem, place + WIDTH, place):
            child += 1
            place += WIDTH
        if end < mem[place] or (end == mem[place] and joined < mem[place + 1]):
            break
        _move(mem, base + WIDTH * at, place)
        at = child
    place = base + WIDTH * at
    mem[place], mem[place + 1], mem[place + 2] = end, joined, row


@kernel
def push_end(mem: Any, base: int, count: int, end: int, joined: int, row: int) -> None:
    """Add an entry to a heap of `count` entries; ends at one step go by admission number."""
    at = count
    while at > 0:
        parent = (at - 1) // 2
        place = base + WIDTH * parent
        if mem[place] < end or (mem[place] == end and mem[place + 1] < joined):
            break
        _move(mem, base + WIDTH * at, place)
        at = parent
    place = base + WIDTH * at
    mem[place], mem[place + 1], mem[place + 2] = end, joined, row


@kernel
def pop_end(mem: Any, base: int, count: int) -> int:
    """Take the first entry out of a heap of `count`; returns its row."""
    row = mem[base + 2]
    last = base + WIDTH * (count - 1)
    if count > 1:
        _sink(mem, base, count - 1, 0, mem[last], mem[last + 1], mem[last + 2])
    return int(row)


@kernel
def remove_end(mem: Any, base: int, count: int, row: int) -> None:
    """Take one row out, wherever it is: rare, so it is searched."""
    for i in range(count):
        if mem[base + WIDTH * i + 2] == row:
            _move(mem, base + WIDTH * i, base + WIDTH * (count - 1))
            break
    restore_ends(mem, base, count - 1)


@kernel
def restore_ends(mem: Any, base: int, count: int) -> None:
    """Make a heap of entries in any order."""
    for at in range(count // 2 - 1, -1, -1):
        place = base + WIDTH * at
        _sink(mem, base, count, at, mem[place], mem[place + 1], mem[place + 2])


@kernel
def _earlier(due: Any, a: int, b: int) -> bool:
    return bool(due[a] < due[b] or (due[a] == due[b] and a < b))


@kernel
def schedule(s: State, w: int, at: int) -> None:
    """Set the next event of a worker; NEVER takes it off."""
    heap, slot, due = s.heap, s.slot, s.due
    place = slot[w]
    count = s.ctl[WORKERS_DUE]
    if at == NEVER:
        if place >= 0:
            _unschedule(s, w, place, count)
        return
    if place >= 0 and due[w] == at:
        return
    due[w] = at
    if place < 0:
        place = count
        s.ctl[WORKERS_DUE] = count + 1
        count += 1
    _settle_worker(heap, slot, due, w, place, count)


@kernel
def _settle_worker(heap: Any, slot: Any, due: Any, w: int, place: int, count: int) -> None:
    """Bring worker w, whose key has changed, from `place` to where it belongs."""
    while place > 0:
        parent = (place - 1) // 2
        other = heap[parent]
        if not _earlier(due, w, other):
            break
        heap[place] = other
        slot[other] = place
        place = parent
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and _earlier(due, heap[child + 1], heap[child]):
            child += 1
        other = heap[child]
        if _earlier(due, w, other):
            break
        heap[place] = other
        slot[other] = place
        place = child
    heap[place] = w
    slot[w] = place


@kernel
def _unschedule(s: State, w: int, place: int, count: int) -> None:
    heap, slot, due = s.heap, s.slot, s.due
    due[w] = NEVER
    slot[w] = -1
    s.ctl[WORKERS_DUE] = count - 1
    last = heap[count - 1]
    if last != w:
        _settle_worker(heap, slot, due, last, place, count - 1)


@kernel
def push_later(s: State, at: int, row: int) -> None:
    """A follower arrives at `at`; equal times go by row."""
    keys, rows = s.later_key, s.later_row
    place = s.ctl[LATER]
    s.ctl[LATER] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] < at or (keys[parent] == at and rows[parent] < row):
            break
        keys[place], rows[place] = keys[parent], rows[parent]
        place = parent
    keys[place], rows[place] = at, row


@kernel
def pop_later(s: State) -> int:
    """The follower that arrives first."""
    keys, rows = s.later_key, s.later_row
    first = rows[0]
    count = s.ctl[LATER] - 1
    s.ctl[LATER] = count
    at, row = keys[count], rows[count]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and (
            keys[child + 1] < keys[child]
            or (keys[child + 1] == keys[child] and rows[child + 1] < rows[child])
        ):
            child += 1
        if at < keys[child] or (at == keys[child] and row < rows[child]):
            break
        keys[place], rows[place] = keys[child], rows[child]
        place = child
    if count > 0:
        keys[place], rows[place] = at, row
    return int(first)
