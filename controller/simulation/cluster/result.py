# SPDX-License-Identifier: Apache-2.0
"""What became of every request: arrays of shape (n,), in the order of the workload.

Owns: the value and how it is read off the last state. Does not own: reports and files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from controller.routing.kernels.reasons import REASONS
from controller.simulation.cluster import state as at
from controller.simulation.cluster.gaps import request_gaps
from controller.simulation.cluster.spec import ClusterSpec, SimOptions, SimulationError, Status
from controller.simulation.workloads.workload import Workload
from controller.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class SimResult:
    """Times are seconds on the run's clock, NaN where something did not happen.

    `ttft_s` is what the client waits: arrival to first token, with queueing, prefill, transfer
    and decode admission in it.
    """

    workload: Workload
    options: SimOptions
    status: IntArray
    """`Status` of each request."""
    arrival_s: FloatArray
    """Followers included: when they arrived."""
    queued_s: FloatArray
    """Placed by the router."""
    sent_s: FloatArray
    """Left the router's queue; a local prefill does not wait there."""
    prefill_start_s: FloatArray
    prefill_end_s: FloatArray
    """Of remote prefills; a local one ends with the first token."""
    pulled_s: FloatArray
    """The KV has arrived on the decode worker (remote prefills)."""
    first_token_s: FloatArray
    finish_s: FloatArray
    place: IntArray
    """0 remote, 1 local, -1 never placed."""
    reason: IntArray
    """Index into controller.routing.kernels.reasons.REASONS; -1 none."""
    prefill_worker: IntArray
    """-1 for local prefills."""
    decode_worker: IntArray
    hit_tokens: IntArray
    """Prompt tokens found in the prefix cache where the prefill ran."""
    pulled_tokens: IntArray
    """Prompt tokens whose KV was transferred."""
    read_tokens: IntArray
    """History tokens whose KV the prefill worker read from the decode worker."""
    migrations: IntArray
    """How often the stream went on elsewhere; times and workers above are those of its last leg."""
    counters: dict[str, IntArray] = field(default_factory=dict)
    """Of each worker, shape (workers,): preemptions, hit_tokens, query_tokens, prompt_tokens,
    output_tokens, compositions."""
    busy_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(workers,) time in steps."""
    state: at.State | None = field(default=None, repr=False)
    """Of the run, for gaps."""

    @property
    def served(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(n,) ended with all its tokens."""
        return np.asarray(self.status == Status.SERVED.value)

    @property
    def ttft_s(self) -> FloatArray:
        """(n,) arrival to first token."""
        return self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> FloatArray:
        """(n,) arrival to last token."""
        return self.finish_s - self.arrival_s

    @property
    def itl_s(self) -> FloatArray:
        """(n,) mean gap between tokens; 0 for a single token."""
        gaps = np.maximum(self.workload.output_tokens - 1, 1)
        return (self.finish_s - self.first_token_s) / gaps

    @cached_property
    def _gaps(self) -> tuple[FloatArray, FloatArray]:
        if self.state is None:
            raise SimulationError("gaps were not kept: set SimOptions.gaps")
        return request_gaps(self.state)

    @property
    def gap_p99_s(self) -> FloatArray:
        """(n,) p99 of the gaps between a request's tokens; NaN for fewer than two tokens."""
        return self._gaps[0]

    @property
    def gap_max_s(self) -> FloatArray:
        """(n,) largest of these gaps."""
        return self._gaps[1]

    @cached_property
    def reasons(self) -> list[str]:
        """(n,) names of the reasons; empty for requests that were never placed."""
        return [REASONS[i].value if i >= 0 else "" for i in self.reason]


def collect(
    workload: Workload, cluster: ClusterSpec, options: SimOptions, s: at.State
) -> SimResult:
    """Read a result off a state. Who has not ended is unfinished, or was never issued."""
    req = s.req
    status = req["status"].astype(np.int64)
    issued = ~np.isnan(req["arrival_s"])
    if options.until_s < np.inf:
        issued &= req["arrival_s"] < options.until_s
    open_ = status == at.PENDING
    status[open_ & issued] = Status.UNFINISHED.value
    status[open_ & ~issued] = Status.NEVER_ISSUED.value
    served = status == Status.SERVED.value
    return SimResult(
        workload=workload,
        options=options,
        status=status,
        arrival_s=req["arrival_s"].copy(),
        queued_s=_times(req["queued_s"], req["place"] >= 0),
        sent_s=_times(req["sent_s"]),
        prefill_start_s=_times(req["started_s"]),
        prefill_end_s=_times(req["prefilled_s"], req["place"] != at.LOCAL),
        pulled_s=_times(req["pulled_s"]),
        first_token_s=_times(req["first_s"]),
        finish_s=_times(req["finish_s"], served),
        place=req["place"].astype(np.int64),
        reason=req["reason"].astype(np.int64),
        prefill_worker=req["prefill_worker"].astype(np.int64),
        decode_worker=req["decode_worker"].astype(np.int64),
        hit_tokens=req["hit_tokens"].astype(np.int64),
        pulled_tokens=np.where(req["pulled_s"] >= 0, req["pulled_tokens"], 0).astype(np.int64),
        read_tokens=req["read_tokens"].astype(np.int64),
        migrations=req["migrations"].astype(np.int64),
        counters={name: s.wrk[name].astype(np.int64) for name in _COUNTERS},
        busy_s=s.wrk["busy_s"].copy(),
        state=s if options.gaps else None,
    )


_COUNTERS = (
    "preemptions",
    "hit_tokens",
    "query_tokens",
    "prompt_tokens",
    "output_tokens",
    "compositions",
)


def _times(column: FloatArray, known: Any = True) -> FloatArray:
    return np.where((column >= 0) & known, column, np.nan)
