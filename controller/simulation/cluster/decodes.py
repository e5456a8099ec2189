# SPDX-License-Identifier: Apache-2.0
"""The decodes of a worker as sums: who decodes, until which step, and when they need blocks.

Owns: joining and leaving the sums, the blocks that a number of steps needs. Does not own: which
steps are made (compose.py), what follows from their end (steps.py).

Nothing here is touched from step to step. The engine's *clock* counts the tokens that its decode
steps have brought to each decode, one a step without speculative decoding. A decode that joins at
clock `since` with `computed` tokens has computed + (clock - since) of them later, and its last
token comes with step `end_step`. It needs a block at each token that is a multiple of the block
size: its *residue*, which is the clock then modulo the block size, never changes, so counting
decodes by residue gives the blocks of any step at once.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.blocks import take, worker_blocks
from controller.simulation.cluster.clock import steps_until
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.heaps import push_end
from controller.simulation.cluster.state import State


@kernel
def tokens_after(worker: Any, steps: int) -> int:
    """The clock of a worker after so many decode steps."""
    if worker.emit_num == worker.emit_den:
        return steps
    return int(steps * worker.emit_num // worker.emit_den)


@kernel
def steps_for(worker: Any, clock: int) -> int:
    """Decode steps after which the clock has reached a value."""
    if worker.emit_num == worker.emit_den:
        return clock
    return int((clock * worker.emit_den + worker.emit_num - 1) // worker.emit_num)


@kernel
def next_tokens(worker: Any) -> int:
    """Tokens that the next decode step brings to each decode."""
    return int(tokens_after(worker, worker.step + 1) - worker.clock)


@kernel
def residue(q: Any, block_size: int) -> int:
    return int((q.since - q.computed) % block_size)


@kernel
def has_spare(q: Any, computed: int, block_size: int) -> bool:
    """Whether the block that its residue asks for now is there already (it came with a pull)."""
    return bool(computed % block_size == 0 and q.blocks * block_size > computed)


@kernel
def start_decoding(s: State, w: int, r: int, coming: int) -> None:
    """A running request has computed all it knows: from now on it decodes.

    `coming` tokens of it are under way.
    """
    worker, q = s.wrk[w], s.req[r]
    size = worker.block_size
    q.since = worker.clock
    q.end_step = steps_for(worker, q.since + q.limit - q.generated - coming)
    q.decoding, q.skipped, q.missed = 1, 0, -1
    s.mem[worker.residues + residue(q, size)] += 1
    if has_spare(q, q.computed, size):
        worker.spare += 1
    push_end(s.mem, worker.ends, worker.decodes, q.end_step, q.joined, r)
    worker.decodes += 1
    worker.context += q.computed
    worker.made += q.generated
    worker.last_join = max(worker.last_join, q.joined)
    worker.changed = 1


@kernel
def leave_decodes(s: State, w: int, r: int) -> None:
    """Out of the sums; the heap of ends is the caller's."""
    worker, q = s.wrk[w], s.req[r]
    s.mem[worker.residues + residue(q, worker.block_size)] -= 1
    done = worker.clock - q.since
    q.computed += done
    if done > 0 and worker.in_flight > 0 and q.missed != worker.step:
        done -= worker.in_flight
        worker.lost += worker.in_flight
    q.generated += done
    q.since = worker.clock
    q.blocks = max(q.blocks, worker_blocks(worker, q.computed))
    q.decoding = 0
    worker.decodes -= 1
    worker.context -= q.computed
    worker.made -= q.generated
    worker.changed = 1


@kernel
def first_growth(s: State, worker: Any) -> int:
    """Blocks that all decodes together need for the next step."""
    if worker.decodes == 0:
        return 0
    return _growth(s, worker, worker.clock, next_tokens(worker)) - int(worker.spare)


@kernel
def _growth(s: State, worker: Any, clock: int, tokens: int) -> int:
    """Blocks that all decodes together need for `tokens` tokens each from a clock on."""
    size, base = worker.block_size, worker.residues
    rounds, need = 0, 0
    if tokens >= size:
        rounds, tokens = divmod(tokens, size)
        need = rounds * worker.decodes
    at = clock % size
    for _ in range(tokens):
        need += s.mem[base + at]
        at += 1
        if at == size:
            at = 0
    return int(need)


@kernel
def steps_begun(worker: Any) -> int:
    """Decode steps of the worker before its planned ones."""
    return int(worker.step - worker.lead)


@kernel
def grow_to(s: State, w: int, n: int) -> None:
    """Take the blocks of the planned steps up to the n-th that were not taken yet."""
    worker = s.wrk[w]
    grown = worker.grown
    if n <= grown:
        return
    worker.grown = n
    before = steps_begun(worker)
    clock = tokens_after(worker, before + grown)
    need = _growth(s, worker, clock, tokens_after(worker, before + n) - clock)
    if need > 0:
        take(s, w, need)


@kernel
def grow_until(s: State, w: int, instant: int) -> None:
    """Take the blocks of the steps that were composed before `instant`."""
    worker = s.wrk[w]
    if worker.busy and worker.n > 1:
        grow_to(s, w, steps_until(worker, instant) + worker.lead)


@kernel
def steps_with_room(s: State, worker: Any, most: int) -> int:
    """How many planned steps the free blocks allow, at most `most`; some are taken already."""
    free, size, n = worker.free, worker.block_size, worker.grown
    before = steps_begun(worker)
    clock = tokens_after(worker, before + n)
    tokens = tokens_after(worker, before + most) - clock
    if worker.decodes * ((tokens + size - 1) // size) <= free:
        return most
    need = 0
    while n < most:
        after = tokens_after(worker, before + n + 1)
        need += _growth(s, worker, clock, after - clock)
        if need > free:
            break
        clock = after
        n += 1
    return int(n)
