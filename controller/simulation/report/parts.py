# SPDX-License-Identifier: Apache-2.0
"""Where the time to the first token went, request by request.

Owns: the four parts and their sum. Does not own: percentiles over them (summary.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.costs.tables import BANDWIDTH_BYTES_S, BYTES_PER_TOKEN, LATENCY_S
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.spec import ClusterSpec
from controller.types import FloatArray, IntArray

REMOTE, LOCAL = 0, 1  # SimResult.place


@dataclass(frozen=True, eq=False)
class TtftParts:
    """(n,) seconds that add up to the TTFT; NaN for requests without a first token, and for those
    whose prefill was done again after it (a worker failed): its times are those of the last one."""

    queue_s: FloatArray
    """Arrival to the first step that computes a prompt token: at the router and in the engine."""
    prefill_s: FloatArray
    """To the end of the prefill; for a local one that is the first token."""
    transfer_s: FloatArray
    """Moving the KV, alone on the link; 0 for a local prefill."""
    admission_s: FloatArray
    """The rest of a remote one: a seat and blocks on the decode worker, other transfers on the
    link, its first decode step. 0 for a local prefill."""


def ttft_parts(result: SimResult, cluster: ClusterSpec) -> TtftParts:
    """Split every TTFT."""
    first_s, local = result.first_token_s, result.place == LOCAL
    prefilled_s = prefill_end_s(result)
    whole = (result.prefill_start_s <= first_s) & (prefilled_s <= first_s)
    transfer_s = np.where(local, 0.0, transfer_alone_s(result, cluster))
    rest_s = np.where(local, 0.0, first_s - prefilled_s - transfer_s)
    parts = (
        result.prefill_start_s - result.arrival_s,
        prefilled_s - result.prefill_start_s,
        transfer_s,
        rest_s,
    )
    return TtftParts(*(np.where(whole, part, np.nan) for part in parts))


def prefill_end_s(result: SimResult) -> FloatArray:
    """(n,) end of the prefill, local or remote; a local one ends with the first token."""
    return np.where(result.place == LOCAL, result.first_token_s, result.prefill_end_s)


def transfer_alone_s(result: SimResult, cluster: ClusterSpec) -> FloatArray:
    """(n,) what moving the pulled tokens takes on an idle link; 0 where nothing was pulled."""
    laws = np.array([cluster.costs[worker.costs].transfer for worker in cluster.workers])
    law = laws[np.maximum(result.decode_worker, 0)]
    moved: IntArray = result.pulled_tokens
    seconds = law[:, LATENCY_S] + moved * law[:, BYTES_PER_TOKEN] / law[:, BANDWIDTH_BYTES_S]
    return np.where(moved > 0, seconds, 0.0)
