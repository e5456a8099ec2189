# SPDX-License-Identifier: Apache-2.0
"""Caps on the chunks of a local prefill: one for all of them, or a schedule.

Owns: the schedule in one word. Does not own: who sets it (a placement rule), the other limits of
a chunk.

A schedule is that of prefill deflection (Kairos, arXiv 2607.02043 section 4.3): chunks that never
grow, out of five sizes that halve: a number of chunks of the largest size, then of half of it, and
so on. Eleven bits hold each number, lowest first, five more the logarithm of the largest size. The
last size holds for whatever remains. 0 is no schedule.
"""

from __future__ import annotations

from typing import Any

from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import LOCAL_LEG
from controller.types import IntArray

SIZES = 5
BITS = 11
MOST = (1 << BITS) - 1


def pack_schedule(largest_log2: int, counts: tuple[int, ...]) -> int:
    """A schedule of `counts[i]` chunks of 2**(largest_log2 - i) tokens, i below 5."""
    if len(counts) > SIZES or not sum(counts) > 0 or not all(0 <= n <= MOST for n in counts):
        raise ValueError(f"a schedule has up to {SIZES} counts of up to {MOST} chunks")
    word = largest_log2 << (BITS * SIZES)
    for i, count in enumerate(counts):
        word |= count << (BITS * i)
    return word


@kernel
def packed(largest_log2: int, counts: IntArray) -> int:
    """The same, compiled, for a rule that has just made the schedule."""
    word = largest_log2 << (BITS * SIZES)
    for i in range(SIZES):
        word |= min(counts[i], MOST) << (BITS * i)
    return word


@kernel
def scheduled(plan: int, done: int) -> int:
    """Tokens that a schedule allows after `done` chunks."""
    largest = plan >> (BITS * SIZES)
    last, passed = 0, 0
    for i in range(SIZES):
        count = (plan >> (BITS * i)) & MOST
        if count > 0:
            last = 1 << (largest - i)
        passed += count
        if done < passed:
            break
    return last


@kernel
def capped(q: Any, tokens: int) -> int:
    """Prompt tokens of a request's next chunk, if nothing else limits it."""
    if q.leg != LOCAL_LEG:
        return tokens
    if q.chunk_cap > 0:
        tokens = min(tokens, q.chunk_cap)
    if q.plan > 0:
        tokens = min(tokens, scheduled(q.plan, q.chunks_done))
    return tokens
