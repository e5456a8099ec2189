# SPDX-License-Identifier: Apache-2.0
"""What the records of a deployment say of its routing: every measure, side by side.

Owns: which measures there are, and why one is missing. Does not own: reading files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.estimation.poa.binding import StepTime, binding_loss, binding_windows
from controller.estimation.poa.from_log import LogParams, Windows, windows_of_log
from controller.estimation.poa.from_trace import (
    PrefillTime,
    fitted_time,
    read_trace,
    windows_of_trace,
)
from controller.estimation.poa.frozen import Frozen, frozen_index
from controller.estimation.poa.loss import Goal, Loss, routing_loss
from controller.routing.decision_record import Logged


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """None where the records do not carry a measure; `skipped` says what they lack."""

    source: str
    prefill_latency: Loss
    prefill_misses: Loss
    binding_latency: Loss | None
    binding_misses: Loss | None
    frozen: Frozen
    requests: int
    """Requests that are in a window."""
    skipped: Mapping[str, int]

    @property
    def incomplete(self) -> bool:
        """Whether something that was asked could not be told."""
        return self.prefill_latency.ratio is None or self.binding_latency is None


def report_of_log(
    logged: Sequence[Logged],
    step: StepTime | None = None,
    params: LogParams | None = None,
    seed: int = 0,
) -> RoutingReport:
    """Off our router's decision log; without `step` (a cost profile) no binding loss."""
    found = windows_of_log(logged, params)
    bound = binding_windows(logged)
    losses: list[Loss | None] = [None, None]
    if step is not None and bound:
        losses = [binding_loss(bound, step, goal, seed) for goal in Goal]
    return _report("decision log", found, losses, seed)


def report_of_trace(
    lines: Sequence[str],
    workers: Sequence[int],
    ttft_limit_s: float,
    time_of: PrefillTime | None = None,
    seed: int = 0,
) -> RoutingReport:
    """Off Dynamo's request trace. Without `time_of` prefill times are fitted to the trace."""
    rows, skipped = read_trace(lines)
    law = time_of or fitted_time(rows)
    if law is None:
        why = {**skipped, **({"too_few_to_fit": len(rows)} if rows else {})}
        return _report("request trace", Windows((), 0, why), [None, None], seed)
    found = windows_of_trace(rows, workers, ttft_limit_s, law)
    both = Windows(found.windows, found.used, {**skipped, **found.skipped})
    return _report("request trace", both, [None, None], seed)


def _report(
    source: str, found: Windows, binding: Sequence[Loss | None], seed: int
) -> RoutingReport:
    latency, misses = (routing_loss(found.windows, goal, seed) for goal in Goal)
    return RoutingReport(
        source=source,
        prefill_latency=latency,
        prefill_misses=misses,
        binding_latency=binding[0],
        binding_misses=binding[1],
        frozen=frozen_index(found.windows),
        requests=found.used,
        skipped={why: count for why, count in found.skipped.items() if count},
    )
