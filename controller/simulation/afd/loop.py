# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of an AFD run: rounds of decode steps, and who joins and leaves between them.

Owns: the order of events. Does not own: layer times (pipeline), places and KV (roster), the rules
in words and the results (run).
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
from numba import njit

from controller.simulation.afd.costs import AfdLaw
from controller.simulation.afd.pipeline import (
    LayerTimes,
    Stations,
    advance_layer,
    advance_layers,
    finish_step,
    new_scratch,
    set_times,
)
from controller.simulation.afd.roster import (
    Roster,
    Sequences,
    grow,
    join,
    leave,
    place_for,
    youngest,
)
from controller.types import FloatArray, IntArray


class Cluster(NamedTuple):
    """What does not change in a run, for compiled code."""

    law: AfdLaw
    layers: int
    most: int
    kv_tokens: int
    watermark: int
    prefill_base_s: float
    prefill_token_s: float


class Rows(NamedTuple):
    """The workload's columns that the run reads."""

    arrival_s: FloatArray
    think_s: FloatArray
    new_tokens: IntArray
    output_tokens: IntArray
    followers: IntArray
    continued: IntArray
    """1 where the follower continues the request's text."""


@njit(cache=True, nogil=True)
def serve(
    cluster: Cluster,
    rows: Rows,
    sequences: Sequences,
    roster: Roster,
    stations: Stations,
    times: LayerTimes,
    limit_s: float,
) -> tuple[FloatArray, IntArray, FloatArray]:
    """The run; per round: its end, its tokens, the busy seconds so far."""
    micro_batches, workers = roster.taken.shape
    scratch = new_scratch(workers)
    coming = [(0.0, 0) for _ in range(0)]
    for row in range(rows.arrival_s.size):
        if not math.isnan(rows.arrival_s[row]):
            _arrive(cluster, rows, sequences, coming, row, rows.arrival_s[row])
    waiting = [0 for _ in range(0)]
    state = np.zeros(2, np.int64)  # head of `waiting`, joinings so far
    ends, tokens, busy = [0.0 for _ in range(0)], [0 for _ in range(0)], [0.0 for _ in range(0)]
    while roster.taken.any() or len(coming) > 0 or state[0] < len(waiting):
        if not roster.taken.any():
            _sleep(stations, coming, waiting, state)
        made, end_s = roster.taken.sum(), 0.0
        worked = stations.busy_s
        for k in range(micro_batches):
            # Whoever is in the micro-batch now has all layers of a step behind it.
            finish_step(stations, times, k, roster.taken[k])
            end_s = max(end_s, _deliver(cluster, rows, sequences, roster, stations, k, coming))
            worked = stations.busy_s.copy()
            _compose(cluster, sequences, roster, stations, k, coming, waiting, state)
            set_times(cluster.law, times, k, roster.taken[k], roster.context[k])
            advance_layer(cluster.law, stations, times, k, roster.taken[k], scratch)
        advance_layers(cluster.law, stations, times, roster.taken, cluster.layers - 1, scratch)
        if made == 0:
            continue
        ends.append(end_s)
        tokens.append(made)
        for value in worked:
            busy.append(value)
        if end_s > limit_s:
            break
    return (
        np.array(ends),
        np.array(tokens, dtype=np.int64),
        np.array(busy).reshape((len(ends), 3)),
    )


@njit(cache=True, nogil=True)
def _arrive(
    cluster: Cluster,
    rows: Rows,
    sequences: Sequences,
    coming: list[tuple[float, int]],
    row: int,
    at_s: float,
) -> None:
    """A request arrives: reject it, answer it by prefill alone, or let its KV come."""
    while row >= 0:
        then = rows.followers[row]
        if sequences.context[row] + rows.output_tokens[row] > cluster.kv_tokens:
            sequences.rejected[row] = 1
            while then >= 0 and rows.continued[row] == 1:
                sequences.rejected[then] = 1
                row, then = then, rows.followers[then]
            if then >= 0:
                at_s += rows.think_s[then]
        else:
            ready_s = at_s + cluster.prefill_base_s + cluster.prefill_token_s * rows.new_tokens[row]
            sequences.ready_s[row] = ready_s
            if sequences.left[row] > 0:
                heapq.heappush(coming, (ready_s, row))
                return
            sequences.finish_s[row] = ready_s
            if then >= 0:
                at_s = ready_s + rows.think_s[then]
        row = then


@njit(cache=True, nogil=True)
def _sleep(
    stations: Stations, coming: list[tuple[float, int]], waiting: list[int], state: IntArray
) -> None:
    """Nobody runs: nothing happens before the next sequence is ready."""
    if state[0] == len(waiting):
        for a in range(stations.attention_s.size):
            stations.attention_s[a] = max(stations.attention_s[a], coming[0][0])


@njit(cache=True, nogil=True)
def _turn_s(roster: Roster, stations: Stations, k: int) -> float:
    """When micro-batch k's next step begins on the first worker that has anything to do."""
    idle = not roster.taken.any()
    turn_s = np.inf
    for a in range(roster.kv.size):
        if idle or roster.taken[:, a].any():
            turn_s = min(turn_s, max(stations.attention_s[a], stations.back_s[k, a]))
    return turn_s


@njit(cache=True, nogil=True)
def _compose(
    cluster: Cluster,
    sequences: Sequences,
    roster: Roster,
    stations: Stations,
    k: int,
    coming: list[tuple[float, int]],
    waiting: list[int],
    state: IntArray,
) -> None:
    """Make room in micro-batch k, let the waiting join, write one token's KV each."""
    now_s = _turn_s(roster, stations, k)
    _preempt(cluster, sequences, roster, k, now_s, coming)
    while len(coming) > 0 and coming[0][0] <= now_s:
        waiting.append(heapq.heappop(coming)[1])
    sequences_here = roster.taken.sum() + len(waiting) - state[0]
    most = min(cluster.most, -(-sequences_here // roster.taken.size))
    while state[0] < len(waiting):
        row = waiting[state[0]]
        tokens = sequences.context[row]
        a = place_for(roster, k, tokens, most, cluster.kv_tokens, cluster.watermark)
        if a < 0:
            break
        if roster.taken[k, a] == 0:
            stations.back_s[k, a] = max(stations.back_s[k, a], now_s)
        join(roster, k, a, row, tokens)
        if math.isnan(sequences.joined_s[row]):
            sequences.joined_s[row] = now_s
        state[0] += 1
        state[1] += 1
        sequences.turn[row] = state[1]
    grow(roster, sequences, k)


@njit(cache=True, nogil=True)
def _preempt(
    cluster: Cluster,
    sequences: Sequences,
    roster: Roster,
    k: int,
    now_s: float,
    coming: list[tuple[float, int]],
) -> None:
    for a in range(roster.kv.size):
        while roster.taken[k, a] > 0 and roster.kv[a] + roster.taken[k, a] > cluster.kv_tokens:
            place = youngest(roster, k, a, sequences.turn)
            row = roster.places[k, a, place]
            leave(roster, k, a, place, sequences.context[row])
            sequences.preemptions[row] += 1
            again_s = (
                now_s + cluster.prefill_base_s + cluster.prefill_token_s * sequences.context[row]
            )
            heapq.heappush(coming, (again_s, row))


@njit(cache=True, nogil=True)
def _deliver(
    cluster: Cluster,
    rows: Rows,
    sequences: Sequences,
    roster: Roster,
    stations: Stations,
    k: int,
    coming: list[tuple[float, int]],
) -> float:
    """One token to each sequence of micro-batch k; when the last of them is out."""
    end_s = 0.0
    for a in range(roster.kv.size):
        if roster.taken[k, a] == 0:
            continue
        out_s = stations.back_s[k, a]
        end_s = max(end_s, out_s)
        for place in range(roster.taken[k, a] - 1, -1, -1):
            row = roster.places[k, a, place]
            sequences.left[row] -= 1
            if sequences.left[row] == 0:
                leave(roster, k, a, place, sequences.context[row])
                sequences.finish_s[row] = out_s
                then = rows.followers[row]
                if then >= 0:
                    _arrive(cluster, rows, sequences, coming, then, out_s + rows.think_s[then])
    return end_s
