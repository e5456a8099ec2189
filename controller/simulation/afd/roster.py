# SPDX-License-Identifier: Apache-2.0
"""Which sequences are in which micro-batch of which attention worker, and the KV they hold.

Owns: joining, leaving, preemption, in place on arrays. Does not own: times (pipeline), the order
in which a run calls these (run).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from controller.types import FloatArray, IntArray


class Roster(NamedTuple):
    """M micro-batches, A attention workers, S places in each micro-batch of a worker."""

    places: IntArray
    """(M, A, S) request rows; the first `taken` of them are in use."""
    taken: IntArray
    """(M, A)"""
    context: IntArray
    """(M, A) KV tokens of the sequences there."""
    kv: IntArray
    """(A,) KV tokens on each worker."""


class Sequences(NamedTuple):
    """One entry a request, all of shape (n,)."""

    context: IntArray
    """KV tokens that the sequence has, or needs in order to join."""
    left: IntArray
    """Tokens still to come."""
    ready_s: FloatArray
    """When its KV was first there: the end of its prefill; NaN while unknown."""
    joined_s: FloatArray
    """When it first joined a micro-batch."""
    finish_s: FloatArray
    turn: IntArray
    """Number of its latest joining: the youngest is preempted first."""
    preemptions: IntArray
    rejected: IntArray
    """1: its KV can never fit one worker, or its stream was cut before it."""


def new_roster(micro_batches: int, workers: int, places: int) -> Roster:
    """Empty."""
    return Roster(
        np.zeros((micro_batches, workers, places), np.int64),
        np.zeros((micro_batches, workers), np.int64),
        np.zeros((micro_batches, workers), np.int64),
        np.zeros(workers, np.int64),
    )


def new_sequences(prompt_tokens: IntArray, output_tokens: IntArray) -> Sequences:
    """Nothing has arrived. The prefill has made the first token of each answer."""
    count = len(prompt_tokens)
    return Sequences(
        context=prompt_tokens.copy(),
        left=output_tokens - 1,
        ready_s=np.full(count, np.nan),
        joined_s=np.full(count, np.nan),
        finish_s=np.full(count, np.nan),
        turn=np.zeros(count, np.int64),
        preemptions=np.zeros(count, np.int64),
        rejected=np.zeros(count, np.int64),
    )


@njit(cache=True, nogil=True)
def place_for(
    roster: Roster, k: int, tokens: int, most: int, kv_tokens: int, watermark: int
) -> int:
    """The worker with the least KV whose micro-batch k has fewer than `most` sequences and which
    can hold `tokens` more, the next step's tokens and the watermark; -1 for none. An empty worker
    needs no watermark.
    """
    best = -1
    for a in range(roster.kv.size):
        needed = roster.kv[a] + tokens + roster.taken[k, a] + 1
        if roster.kv[a] > 0:
            needed += watermark
        room = needed <= kv_tokens and roster.taken[k, a] < most
        if room and (best < 0 or roster.kv[a] < roster.kv[best]):
            best = a
    return best


@njit(cache=True, nogil=True)
def join(roster: Roster, k: int, a: int, row: int, tokens: int) -> None:
    """Put a sequence with `tokens` of KV into micro-batch k of worker a."""
    roster.places[k, a, roster.taken[k, a]] = row
    roster.taken[k, a] += 1
    roster.context[k, a] += tokens
    roster.kv[a] += tokens


@njit(cache=True, nogil=True)
def leave(roster: Roster, k: int, a: int, place: int, tokens: int) -> None:
    """Take the sequence at `place` away; the last one moves there."""
    last = roster.taken[k, a] - 1
    roster.places[k, a, place] = roster.places[k, a, last]
    roster.taken[k, a] = last
    roster.context[k, a] -= tokens
    roster.kv[a] -= tokens


@njit(cache=True, nogil=True)
def youngest(roster: Roster, k: int, a: int, turn: IntArray) -> int:
    """The place of the sequence that joined last."""
    best = 0
    for place in range(1, roster.taken[k, a]):
        if turn[roster.places[k, a, place]] > turn[roster.places[k, a, best]]:
            best = place
    return best


@njit(cache=True, nogil=True)
def grow(roster: Roster, sequences: Sequences, k: int) -> None:
    """Every sequence of micro-batch k writes the KV of one more token."""
    for a in range(roster.kv.size):
        for place in range(roster.taken[k, a]):
            sequences.context[roster.places[k, a, place]] += 1
        roster.context[k, a] += roster.taken[k, a]
        roster.kv[a] += roster.taken[k, a]
