# SPDX-License-Identifier: Apache-2.0
"""One line a request, as columns.

Owns: names and units of the columns of the per-request file. Does not own: its format.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.routing.kernels.reasons import REASONS
from controller.simulation.cluster.result import SimResult
from controller.simulation.cluster.spec import ClusterSpec, Status
from controller.simulation.report.parts import ttft_parts
from controller.simulation.report.summary import attained

_PLACES = np.array(["remote", "local", ""])  # -1 is the last one
_STATUSES = np.array(["", *(status.name.lower() for status in Status)])
_REASONS = np.array([*(reason.value for reason in REASONS), ""])


def request_columns(result: SimResult, cluster: ClusterSpec) -> dict[str, Any]:
    """Arrays of shape (n,), in the order of the workload. NaN and -1: did not happen."""
    w = result.workload
    parts = ttft_parts(result, cluster)
    good, good_gap = attained(result)
    several = w.output_tokens > 1
    return {
        "request": np.arange(len(w)),
        "session": w.session,
        "round": w.round,
        "tenant": w.tenant,
        "priority": w.priority,
        "status": _STATUSES[result.status],
        "prompt_tokens": w.prompt_tokens,
        "output_tokens": w.output_tokens,
        "hit_tokens": result.hit_tokens,
        "pulled_tokens": result.pulled_tokens,
        "migrations": result.migrations,
        "place": _PLACES[result.place],
        "reason": _REASONS[result.reason],
        "prefill_worker": result.prefill_worker,
        "decode_worker": result.decode_worker,
        "arrival_s": result.arrival_s,
        "sent_s": result.sent_s,
        "prefill_start_s": result.prefill_start_s,
        "prefill_end_s": result.prefill_end_s,
        "pulled_s": result.pulled_s,
        "first_token_s": result.first_token_s,
        "finish_s": result.finish_s,
        "ttft_ms": result.ttft_s * 1e3,
        "queue_ms": parts.queue_s * 1e3,
        "prefill_ms": parts.prefill_s * 1e3,
        "transfer_ms": parts.transfer_s * 1e3,
        "admission_ms": parts.admission_s * 1e3,
        "itl_ms": np.where(several, result.itl_s, np.nan) * 1e3,
        "gap_p99_ms": result.gap_p99_s * 1e3,
        "gap_max_ms": result.gap_max_s * 1e3,
        "latency_ms": result.latency_s * 1e3,
        "attained": good,
        "attained_p99_gap": good_gap,
    }
