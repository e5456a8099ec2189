# SPDX-License-Identifier: Apache-2.0
"""The values that every room speaks. Frozen, without behaviour, units in the names.

Owns: SLOs, tasks, the view of a cluster at one instant, decisions and their closed reasons.
Does not own: how any of them is measured, decided or applied.

Conventions: times are seconds on one emulated clock (`_s`), SLO limits are milliseconds
(`_ms`) as operators write them; `None` is unknown, 0 only a confirmed zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


PlacementName = Literal[
    "toll",
    "batch",
    "deflect",
    "ampd",
    "least_ttft",
    "kv_cost",
    "conditional",
    "round_robin",
    "always_remote",
    "always_local",
]
"""Placement rules, by the name in configurations (routing/registry.py makes them)."""

OrderingName = Literal[
    "fifo", "algorithm_2", "hopeless_last", "earliest_deadline", "moore_hodgson", "shortest"
]
"""Orderings of what waits for a worker (routing/kernels/orderings.py says what each does)."""


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
    REJECTED = "rejected"
    """Early rejection (off by default): its TTFT limit could not be met any more."""
    NOT_DECIDED = "not_decided"
    """The client left before anything was decided."""
    OVERLOADED = "overloaded"
    """The router holds as much as it may (admission limit); refused, or prefilled locally."""
    TRANSFER_LIMIT = "transfer_limit"
    """The decode leg of a hand-over did not begin in time: prefilled where it streams."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective of one request class.

    A request attains it when its TTFT (arrival to first delivered token) and its mean
    inter-token latency both stay within the limits.
    """

    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True, slots=True)
class TollParams:
    """The knobs of the toll rule (routing/kernels/toll.py)."""

    expected_error: float = 0.2
    """Relative standard deviation assumed of predicted times."""
    itl_guard: float = 0.8
    """Share of the ITL limit that a step with a local chunk may take."""
    local_chunk_tokens: int = 0
    """Most prompt tokens of a local prefill in one step; 0: the engine's budget."""
    least_chance: float = 0.7
    """A local prefill is worth its place from this chance on to be in time."""


@dataclass(frozen=True, slots=True)
class RoutingParams:
    """The knobs of a placement rule (AMPD section 3 gives the defaults)."""

    alpha: float = 0.9
    """Share of the TTFT limit below which a prefill worker has slack."""
    beta: float = 0.85
    """Share of the ITL limit below which a decode worker has slack."""
    window_s: float = 10.0
    """Length of the TTFT and ITL windows."""
    toll: TollParams = field(default_factory=TollParams)


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
    slo: Slo | None = None
    """Its own limits; None: those of the deployment."""
    urgency: int = 0
    """Strict priority: the larger goes first, whatever else (Dynamo's `strict_priority`)."""
    jump_s: float = 0.0
    """In a first-come order it counts as having come this much earlier (`priority_jump`)."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return self.history_tokens + self.increment_tokens


Forecast = Callable[[PrefillTask, FloatArray, float, float], tuple[FloatArray, FloatArray]]
"""What one more task would do to each queue, under the ordering in force.

(task, its predicted prefill time at each worker, latest end of that prefill, relative error) ->
(expected SLO misses it causes, own and others'; predicted end of its prefill), shapes (workers,).
"""


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Prefill workers at one instant, as parallel arrays of shape (workers,).

    `ttft_window_s` is NaN where the window is empty; `queue_s` is the predicted time of all
    work waiting at or running on the worker (Eq. 2, t_queue), `tokens` the same in uncached
    tokens; `cached_tokens` are tokens of *this task's* prompt that the worker's own prefix cache
    holds.
    """

    worker_ids: tuple[int, ...]
    ttft_window_s: FloatArray
    queue_s: FloatArray
    tokens: IntArray
    cached_tokens: IntArray
    forecast: Forecast
    budget_tokens: int
    """Tokens that one step of a prefill engine may compute."""
    block_size: int
    """Tokens of a KV block."""


@dataclass(frozen=True, slots=True)
class DecodePool:
    """Decode workers at one instant, as parallel arrays of shape (workers,).

    `itl_window_s` is NaN where the window is empty; `queue_s` is the predicted time of the
    prefills queued there (Eq. 1), `local_prefills` their number; `batch` and `context_tokens`
    describe the running decodes. `held_tokens` are the KV tokens of all that is bound to the
    worker, `kv_tokens` those it has room for, `budget_tokens` what one of its steps may compute,
    `chunked` whether it follows a chunk schedule. `cached_tokens` are tokens of this task's
    prompt whose KV it holds.
    """

    worker_ids: tuple[int, ...]
    itl_window_s: FloatArray
    queue_s: FloatArray
    local_prefills: IntArray
    batch: IntArray
    context_tokens: IntArray
    held_tokens: IntArray
    kv_tokens: IntArray
    budget_tokens: IntArray
    chunked: BoolArray
    cached_tokens: IntArray


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a placement rule may look at. `bound` indexes `decode`; None when unknown.

    `fresh`: the session was bound just now, so a rule may name another decode worker.
    """

    now_s: float
    prefill: PrefillPool
    decode: DecodePool
    bound: int | None
    fresh: bool = False


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
    decode_id: int | None = None
    """LOCAL in place of the bound decode worker: this one. None: the bound one."""
    chunks: tuple[int, ...] = ()
    """LOCAL, for an engine that follows it: most prompt tokens of the first, second, ... step; the
    last one holds for all further steps. Empty: the engine's own budget."""
    local_s: float | None = None
    """LOCAL: predicted time of the prefill, if the rule knows better than Eq. 1."""
    misses: tuple[tuple[str, float], ...] = ()
    """Expected SLO misses that each choice causes, keyed as `estimates_s`; of rules that price."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over those that have it; all None when none has."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
