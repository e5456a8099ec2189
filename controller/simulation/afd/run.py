# SPDX-License-Identifier: Apache-2.0
"""A workload on an AFD decode pool, event by event.

Owns: who joins a micro-batch when, and the results. Does not own: layer times (pipeline), prefill.

- **Prefill** is somebody else's: a request's KV is on hand `prefill_s` after its arrival
  (`Prefill`: no queue, no transfer contention). Use it to study the decode pool alone.
- **Joining.** Sequences wait in order of readiness. At each turn of a micro-batch the head joins
  the attention worker with the least KV, as long as micro-batches stay level (at most
  ceil((running + waiting) / (workers * micro-batches)) sequences each), its KV fits above a
  watermark of 1 %, and the batch cap holds. A sequence that is ready in mid-step waits.
- **Growth.** Each step writes one token a sequence. A worker without room for its micro-batch's
  step preempts that micro-batch's youngest sequences; their KV is recomputed elsewhere, and they
  queue again when that is done.
- **Rejection.** A request whose prompt and answer exceed a worker's KV is rejected, and with it
  the later rounds of its stream, as `Workload` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controller.simulation.afd.costs import AfdCosts
from controller.simulation.afd.loop import Cluster, Rows, serve
from controller.simulation.afd.pipeline import new_stations, new_times
from controller.simulation.afd.pool import AfdError, AfdPool
from controller.simulation.afd.roster import new_roster, new_sequences
from controller.simulation.workloads.workload import Workload
from controller.types import FloatArray, IntArray

_WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class Prefill:
    """When KV is on hand: `base_s + per_token_s * new tokens` after the arrival [assumption].

    The defaults are of the order of a 70B model on four GPUs.
    """

    base_s: float = 0.02
    per_token_s: float = 30e-6


@dataclass(frozen=True, slots=True, eq=False)
class AfdRun:
    """What happened. Requests: shape (n,), NaN where it never did; rounds: shape (r,).

    A round is one decode step of all micro-batches.
    """

    ready_s: FloatArray
    joined_s: FloatArray
    finish_s: FloatArray
    preemptions: IntArray
    rejected: IntArray
    output_tokens: IntArray
    round_end_s: FloatArray
    round_tokens: IntArray
    round_busy_s: FloatArray
    """(r, 3) cumulated busy seconds: attention workers in all, one FFN worker, its fuller link."""
    pool: AfdPool

    @property
    def tpot_s(self) -> FloatArray:
        """(n,) time a token as the client sees it, waiting for a place included: from the first
        token (the end of prefill) to the last. NaN without a second token or an end.
        """
        later = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        tpot: FloatArray = (self.finish_s - self.ready_s) / later
        return tpot

    def window(self, start_s: float, end_s: float) -> AfdWindow:
        """Rates between the first round that ends after `start_s` and the last before `end_s`.

        AfdError when the window holds fewer than two rounds.
        """
        inside = np.flatnonzero((self.round_end_s >= start_s) & (self.round_end_s <= end_s))
        if len(inside) < 2:
            raise AfdError(f"no two decode rounds end between {start_s:g} and {end_s:g} s")
        first, last = int(inside[0]), int(inside[-1])
        seconds = float(self.round_end_s[last] - self.round_end_s[first])
        busy = self.round_busy_s[last] - self.round_busy_s[first]
        tokens = int(self.round_tokens[first + 1 : last + 1].sum())
        return AfdWindow(
            tokens_per_s=tokens / seconds,
            step_s=seconds / (last - first),
            sequences=tokens / (last - first),
            attention_busy=float(busy[0]) / seconds / self.pool.attention_workers,
            ffn_busy=float(busy[1]) / seconds,
            link_busy=float(busy[2]) / seconds,
        )


@dataclass(frozen=True, slots=True)
class AfdWindow:
    """Means over a window; busy shares lie in [0, 1]."""

    tokens_per_s: float
    step_s: float
    sequences: float
    attention_busy: float
    ffn_busy: float
    link_busy: float
    """Receiving side of an FFN worker."""


def simulate_afd(
    workload: Workload,
    costs: AfdCosts,
    pool: AfdPool,
    prefill: Prefill | None = None,
    limit_s: float = math.inf,
) -> AfdRun:
    """Serve the workload to its end, or until a round ends after `limit_s`.

    `costs` must be those of `pool`. Deterministic: the only random numbers are those that drew the
    workload.
    """
    prefill = prefill or Prefill()
    places = max(1, pool.max_sequences // pool.micro_batches)
    cluster = Cluster(
        law=costs.law,
        layers=costs.layers,
        most=places,
        kv_tokens=costs.kv_tokens,
        watermark=int(_WATERMARK * costs.kv_tokens),
        prefill_base_s=prefill.base_s,
        prefill_token_s=prefill.per_token_s,
    )
    sequences = new_sequences(workload.prompt_tokens, workload.output_tokens)
    ends, tokens, busy = serve(
        cluster,
        _rows(workload),
        sequences,
        new_roster(pool.micro_batches, pool.attention_workers, places),
        new_stations(pool.micro_batches, pool.attention_workers),
        new_times(pool.micro_batches, pool.attention_workers),
        limit_s,
    )
    return AfdRun(
        ready_s=sequences.ready_s,
        joined_s=sequences.joined_s,
        finish_s=sequences.finish_s,
        preemptions=sequences.preemptions,
        rejected=sequences.rejected,
        output_tokens=workload.output_tokens,
        round_end_s=ends,
        round_tokens=tokens,
        round_busy_s=busy,
        pool=pool,
    )


def _rows(w: Workload) -> Rows:
    followers = w.followers
    continued = np.zeros(len(w), np.int64)
    has = followers >= 0
    continued[has] = w.continues[followers[has]] >= 0
    return Rows(w.arrival_s, w.think_s, w.new_tokens, w.output_tokens, followers, continued)
