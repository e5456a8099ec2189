# SPDX-License-Identifier: Apache-2.0
"""The values that every room speaks. Frozen, without behaviour, units in the names.

Owns: SLOs, tasks, the view of a cluster at one instant, decisions and their closed reasons.
Does not own: how any of them is measured, decided or applied.

Conventions: times are seconds on one emulated clock (`_s`), SLO limits are milliseconds
(`_ms`) as operators write them; `None` is unknown, 0 only a confirmed zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Place(str, Enum):
    """Where a prefill runs."""

    LOCAL = "local"
    """On the decode worker that will stream the tokens."""
    REMOTE = "remote"
    """On a prefill worker; the KV is handed over afterwards."""


class DecisionReason(str, Enum):
    """Why a prefill went where it went. Closed: append, never reorder or rename."""

    PREFILL_SLACK = "prefill_slack"
    """AMPD Algorithm 1: a prefill worker's windowed TTFT leaves slack."""
    DECODE_SLACK = "decode_slack"
    """AMPD Algorithm 1: no prefill worker has slack, the bound decode worker's ITL has."""
    ARGMIN_LOCAL = "argmin_local"
    """AMPD Algorithm 1: nobody has slack, Eq. 1 is the least."""
    ARGMIN_REMOTE = "argmin_remote"
    """AMPD Algorithm 1: nobody has slack, one Eq. 2 is the least."""
    LEAST_LOADED = "least_loaded"
    """Always-remote baseline: the prefill worker with the least predicted work."""
    ALWAYS_LOCAL = "always_local"
    """Always-local baseline (co-located prefill)."""
    PREFILL_POOL_EMPTY = "prefill_pool_empty"
    """No prefill worker is alive: the prefill runs on the decode worker."""
    NO_DECODE_WORKER = "no_decode_worker"
    """No decode worker is known, so a local estimate does not exist."""
    MULTIPLE_SEQUENCES = "multiple_sequences"
    """n > 1: one hand-over handle cannot serve n sequences (docs/handover.md)."""
    WAIT_LIMIT = "wait_limit"
    """The queue wait reached its limit; the prefill runs locally instead."""
    PREFILL_FAILED = "prefill_failed"
    """The prefill worker failed or vanished and no other could take over."""
    SHADOW_STOCK = "shadow_stock"
    """Shadow mode: where Dynamo's own KV router sends it; the rule's choice is only logged."""
    ROUND_ROBIN = "round_robin"
    """Baseline: prefill workers in turn."""
    LEAST_TTFT_LOCAL = "least_ttft_local"
    """Predicted TTFT is least on the bound decode worker."""
    LEAST_TTFT_REMOTE = "least_ttft_remote"
    """Predicted TTFT is least on a prefill worker."""
    TOLL_LOCAL = "toll_local"
    """Toll: the decode worker is where it causes the fewest expected SLO misses."""
    TOLL_REMOTE = "toll_remote"
    """Toll: a prefill worker is."""
    DEFLECTED = "deflected"
    """Deflection: the decode worker has a safe chunk schedule that is fast enough."""
    NOT_DEFLECTED = "not_deflected"
    """Deflection: no decode worker has one, or the prefill worker is faster."""
    KV_COST = "kv_cost"
    """Dynamo's KV cost: overlap and active blocks."""
    BELOW_THRESHOLD = "below_threshold"
    """Dynamo's conditional disaggregation: the decode worker lacks little of the prompt."""
    ABOVE_THRESHOLD = "above_threshold"
    """Dynamo's conditional disaggregation: it lacks too much."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective of one request class.

    A request attains it when its TTFT (arrival to first delivered token) and its mean
    inter-token latency both stay within the limits.
    """

    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True, slots=True)
class RoutingParams:
    """The knobs of a placement rule (AMPD section 3 gives the defaults)."""

    alpha: float = 0.9
    """Share of the TTFT limit below which a prefill worker has slack."""
    beta: float = 0.85
    """Share of the ITL limit below which a decode worker has slack."""
    window_s: float = 10.0
    """Length of the TTFT and ITL windows."""


@dataclass(frozen=True, slots=True)
class PrefillTask:
    """One prefill to place: `history_tokens + increment_tokens` is the prompt length.

    `history_tokens` (l_hist) have their KV on the bound decode worker already.
    """

    request_id: str
    arrival_s: float
    history_tokens: int
    increment_tokens: int
    session_id: str | None = None
    sequences: int = 1
    """Sequences asked for (`n`)."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return self.history_tokens + self.increment_tokens


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Prefill workers at one instant, as parallel arrays of shape (workers,).

    `ttft_window_s` is NaN where the window is empty; `queue_s` is the predicted time of all
    work waiting at or running on the worker (Eq. 2, t_queue); `cached_tokens` are tokens of
    *this task's* prompt that the worker's own prefix cache holds.
    """

    worker_ids: tuple[int, ...]
    ttft_window_s: FloatArray
    queue_s: FloatArray
    cached_tokens: IntArray


@dataclass(frozen=True, slots=True)
class DecodePool:
    """Decode workers at one instant, as parallel arrays of shape (workers,).

    `itl_window_s` is NaN where the window is empty; `queue_s` is the predicted time of the
    prefills queued there (Eq. 1); `batch` and `context_tokens` describe the running decodes.
    """

    worker_ids: tuple[int, ...]
    itl_window_s: FloatArray
    queue_s: FloatArray
    batch: IntArray
    context_tokens: IntArray


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a placement rule may look at. `bound` indexes `decode`; None when unknown."""

    now_s: float
    prefill: PrefillPool
    decode: DecodePool
    bound: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a prefill runs and why.

    `worker_id` is a prefill worker for REMOTE, None for LOCAL (the decode worker is bound
    elsewhere). `estimates_s` holds what was compared, keyed `local` or the worker id, for
    the decision log; empty when the rule did not need them.
    """

    place: Place
    worker_id: int | None
    reason: DecisionReason
    estimates_s: tuple[tuple[str, float], ...] = ()
