# SPDX-License-Identifier: Apache-2.0
"""What a control loop reads between two advances of a simulation: a few numbers a worker.

Owns: the value, and how it is read off the state without advancing or copying it. Does not own:
what a control loop does with it.

Decode steps are planned in runs; the part of a running one that is over by now is counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from controller.simulation.cluster import state as at
from controller.simulation.cluster.books import itl_window_s, ttft_window_s
from controller.simulation.cluster.clock import instant, steps_until
from controller.simulation.cluster.compiled import entry
from controller.simulation.cluster.decodes import grow_until, steps_begun, tokens_after
from controller.simulation.cluster.links import settle_pins
from controller.simulation.cluster.state import KEEP_LOG, State
from controller.types import FloatArray, IntArray

_SUMS = 4  # columns that `_look` fills: output tokens, context, TTFT window, ITL window
_TOTALS = ("prompt_tokens", "output_tokens", "preemptions", "hit_tokens", "query_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Arrays have shape (workers,), by worker number."""

    now_s: float
    decodes: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether it is on the decode side."""
    life: IntArray
    """0 live, 1 draining, 2 starting, 3 away."""
    queued: IntArray
    """Prefills that wait for it at the router."""
    in_flight: IntArray
    """Prefills that it was sent and has not finished."""
    waiting: IntArray
    """Requests in the engine's own queue."""
    pulling: IntArray
    running: IntArray
    batch: IntArray
    """Running decodes."""
    context_tokens: IntArray
    """KV tokens that they hold."""
    free_blocks: IntArray
    num_blocks: IntArray
    ttft_window_s: FloatArray
    """As Algorithm 1 reads it (prefill workers); NaN for an empty window."""
    itl_window_s: FloatArray
    """The same of decode workers; NaN also if step times are not kept (SimOptions.gaps)."""
    totals: dict[str, IntArray]
    """Since the start, (workers,) each: prompt_tokens, output_tokens, preemptions, hit_tokens,
    query_tokens."""
    requests: dict[str, int]
    """Since the start: arrived, served, rejected, failed."""


def observe(s: at.State, now_s: float) -> Observation:
    """The state as of `now_s`, up to which the simulation has been advanced."""
    sums = np.zeros((_SUMS, len(s.wrk)))
    _look(s, instant(now_s), now_s, sums)
    wrk = s.wrk
    totals = {name: wrk[name].astype(np.int64) for name in _TOTALS}
    totals["output_tokens"] = sums[0].astype(np.int64)
    return Observation(
        now_s=now_s,
        decodes=wrk["role"] == at.DECODES,
        life=_whole(wrk["life"]),
        queued=_whole(wrk["queued"]),
        in_flight=s.seen[at.FLYING].copy(),
        waiting=_whole(wrk["waiting"]),
        pulling=_whole(wrk["pulling"]),
        running=_whole(wrk["running"]),
        batch=_whole(wrk["decodes"]),
        context_tokens=sums[1].astype(np.int64),
        free_blocks=_whole(wrk["free"]),
        num_blocks=_whole(wrk["num_blocks"]),
        ttft_window_s=sums[2],
        itl_window_s=sums[3],
        totals=totals,
        requests={
            "arrived": int(s.ctl[at.OPEN : at.FAILED + 1].sum()),
            "served": int(s.ctl[at.SERVED]),
            "rejected": int(s.ctl[at.REJECTED]),
            "failed": int(s.ctl[at.FAILED]),
        },
    )


def _whole(column: Any) -> IntArray:
    return np.asarray(column).astype(np.int64)


@entry
def _look(s: State, now: int, now_s: float, sums: FloatArray) -> None:
    for w in range(s.wrk.size):
        worker = s.wrk[w]
        settle_pins(s, w, now - 1)
        sums[0, w], sums[1, w] = worker.output_tokens, worker.context
        if worker.busy and worker.in_batch > 0:
            before = steps_begun(worker)
            ended = before + steps_until(worker, now) - 1
            made = tokens_after(worker, ended) - tokens_after(worker, before)
            sums[0, w] += worker.in_batch * made
            sums[1, w] += worker.in_batch * (
                tokens_after(worker, ended + worker.lead) - worker.clock
            )
            grow_until(s, w, now)
        sums[2, w] = ttft_window_s(s, w, now_s)
        sums[3, w] = itl_window_s(s, w, now_s) if s.ctl[KEEP_LOG] else np.nan
