# SPDX-License-Identifier: Apache-2.0
"""The decodes of a worker as sums: who decodes, until which step, and when they need blocks.

Owns: joining and leaving the sums, the blocks that a number of steps needs. Does not own: which
steps are made (compose.py), what follows from their end (steps.py).

Nothing here is touched from step to step. A decode that joins after step `base` with `computed`
tokens has computed + (step - base) of them later, and its last token comes with step `end_step`.
It needs a block in each step that begins with a multiple of the block size: its *residue*, the
number of such steps modulo the block size, never changes, so counting decodes by residue gives
the blocks of any step at once.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.blocks import take, worker_blocks
from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.heaps import push_end
from controller.simulation.cluster.state import State


@kernel
def residue(q: Any, block_size: int) -> int:
    return int((q.base - q.computed) % block_size)


@kernel
def has_spare(q: Any, computed: int, block_size: int) -> bool:
    """Whether the block that its residue asks for now is there already (it came with a pull)."""
    return bool(computed % block_size == 0 and q.blocks * block_size > computed)


@kernel
def start_decoding(s: State, w: int, r: int) -> None:
    """A running request has computed all it knows: from now on it takes one token a step."""
    worker, q = s.wrk[w], s.req[r]
    size = worker.block_size
    q.base = worker.step
    q.end_step = worker.step + q.limit - q.generated
    q.decoding, q.skipped = 1, 0
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
    done = worker.step - q.base
    q.computed += done
    q.generated += done
    q.base = worker.step
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
    return int(s.mem[worker.residues + worker.step % worker.block_size] - worker.spare)


@kernel
def grow_to(s: State, w: int, n: int) -> None:
    """Take the blocks of the planned steps up to the n-th that were not taken yet."""
    worker = s.wrk[w]
    grown = worker.grown
    if n <= grown:
        return
    worker.grown = n
    size, base = worker.block_size, worker.residues
    rounds, rest = divmod(n - grown, size)
    need = rounds * worker.decodes
    at = (worker.step + grown) % size
    for _ in range(rest):
        need += s.mem[base + at]
        at += 1
        if at == size:
            at = 0
    if need > 0:
        take(s, w, need)


@kernel
def steps_with_room(s: State, worker: Any, most: int) -> int:
    """How many steps the free blocks allow, at most `most`; the first one's are taken already."""
    free, size = worker.free, worker.block_size
    if worker.decodes * ((most + size - 2) // size) <= free:
        return most
    need, n = 0, 1
    while n < most:
        need += s.mem[worker.residues + (worker.step + n) % size]
        if need > free:
            break
        n += 1
    return n
