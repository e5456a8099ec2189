# SPDX-License-Identifier: Apache-2.0
"""The toll rule on a live view: a prefill goes where it causes the fewest expected SLO misses.

Owns: what the rule reads of a view. Does not own: the rule, its prices and what is known about
them (routing/kernels/toll.py), the worth of a queue (routing/kernels/forecast.py).

A local prefill is considered where the decode batch can bear it and the prompt fits beside what is
bound to the worker. An engine that takes no chunk schedule computes as much at once as its budget
allows: there the whole budget must be bearable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controller.costs.model import TableCost
from controller.routing.estimates import decision, handover_s, named_estimates, own_times_s
from controller.routing.kernels import entries
from controller.routing.kernels.binding import roomiest
from controller.routing.kernels.reasons import LOCAL, REASONS
from controller.routing.kernels.toll import toll
from controller.types import (
    ClusterView,
    Decision,
    FloatArray,
    Place,
    PrefillTask,
    RoutingParams,
    Slo,
)


@dataclass(frozen=True, slots=True)
class _Local:
    """A local prefill on one decode worker; `ttft_s` NaN where it may not run."""

    index: int
    misses: float
    ttft_s: float
    chunk: int
    own_s: float


@dataclass(frozen=True, slots=True)
class Toll:
    """One decision a prefill; without state."""

    costs: TableCost
    slo: Slo
    params: RoutingParams

    def __post_init__(self) -> None:
        toll(np.zeros(1), np.zeros(1), 0.0, 0.0, 1.0)
        roomiest(np.zeros(1), np.zeros(1, np.int64))
        entries.local_price(*self.costs.packed, *[1.0] * 13)
        entries.handover_s(*self.costs.packed, 1, 1, 1, 1)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        slo = task.slo or self.slo
        limit_s = slo.ttft_ms / 1e3
        misses, ttft_s = self._remote(task, view, limit_s)
        local = self._local(task, view, slo)
        choice, reason = toll(misses, ttft_s, local.misses, local.ttft_s, limit_s)
        barred = math.isnan(local.ttft_s)
        named = named_estimates(view, ttft_s, None if barred else local.ttft_s)
        priced = named_estimates(view, misses, None if barred else local.misses)
        if choice != LOCAL:
            return decision(view, choice, reason, named, priced)
        decode = view.decode
        return Decision(
            Place.LOCAL,
            None,
            REASONS[reason],
            named,
            decode_id=None if local.index == view.bound else decode.worker_ids[local.index],
            chunks=(local.chunk,) if decode.chunked[local.index] else (),
            local_s=local.own_s,
            misses=priced,
        )

    def _remote(
        self, task: PrefillTask, view: ClusterView, limit_s: float
    ) -> tuple[FloatArray, FloatArray]:
        """Expected misses and TTFT of each prefill worker, shapes (workers,)."""
        after_s = handover_s(self.costs, task, view)
        misses, end_s = view.prefill.forecast(
            task,
            own_times_s(self.costs, task, view),
            task.arrival_s + limit_s - after_s,
            self.params.toll.expected_error,
        )
        end_s -= view.now_s
        end_s += after_s
        end_s += view.now_s - task.arrival_s
        return misses, end_s

    def _local(self, task: PrefillTask, view: ClusterView, slo: Slo) -> _Local:
        decode, knobs = view.decode, self.params.toll
        if view.bound is None:
            return _Local(-1, 1.0, math.nan, 0, 0.0)
        d = view.bound
        if view.fresh:
            d = int(roomiest(decode.queue_s, decode.held_tokens))
        history = task.history_tokens
        if d != view.bound:
            history = min(decode.cached_tokens.item(d), task.prompt_tokens - 1)
        chunked = decode.chunked.item(d)
        budget = min(decode.budget_tokens.item(d), self.costs.max_chunk_tokens)
        misses, ttft_s, chunk, own_s = entries.local_price(
            *self.costs.packed,
            float(decode.batch.item(d)),
            float(decode.context_tokens.item(d)),
            float(task.prompt_tokens),
            float(history),
            float(decode.local_prefills.item(d)),
            float(knobs.local_chunk_tokens if chunked else 0),
            float(budget),
            knobs.itl_guard * (slo.itl_ms / 1e3),
            decode.queue_s.item(d),
            view.now_s - task.arrival_s,
            slo.ttft_ms / 1e3,
            knobs.expected_error,
            knobs.least_chance,
        )
        # What is bound there but waits elsewhere holds nothing yet.
        more = (decode.local_prefills.item(d) + 1) * task.prompt_tokens
        fits = decode.context_tokens.item(d) + more <= decode.kv_tokens.item(d)
        cut = not chunked and chunk < budget
        if not fits or cut:
            return _Local(d, 1.0, math.nan, 0, 0.0)
        return _Local(d, misses, ttft_s, int(chunk), own_s)
