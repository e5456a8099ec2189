# SPDX-License-Identifier: Apache-2.0
"""Prefill deflection (Kairos, arXiv 2607.02043) on a live view.

Owns: what the rule reads of a view. Does not own: the rule and the schedules
(routing/kernels/deflect.py). An engine that takes no chunk schedule chunks as it likes: there the
schedule is the admission test only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from controller.costs.model import TableCost
from controller.routing.estimates import Estimates, decision
from controller.routing.kernels import deflect, entries
from controller.routing.kernels.reasons import DEFLECTED, LOCAL, NOT_DEFLECTED
from controller.types import ClusterView, Decision, PrefillTask, RoutingParams, Slo


@dataclass(frozen=True, slots=True)
class Deflect:
    """One decision a prefill; without state."""

    costs: TableCost
    slo: Slo
    params: RoutingParams

    def __post_init__(self) -> None:
        one = np.ones(1, np.int64)
        entries.best_prefill(*self.costs.packed, one, 1.0, 1.0)
        self._decode(one, one, one, one, 0, 1.0, 1.0)
        deflect.deflects(1.0, 1.0, 1.0, deflect.ALPHA)

    def _decode(self, *inputs: object) -> tuple[int, float, tuple[int, ...]]:
        counts = np.zeros(2 * deflect.SIZES, np.int64)
        best, path_s = entries.best_decode(*self.costs.packed, *inputs, counts)  # type: ignore[call-arg, arg-type]
        return best, path_s, deflect.schedule(counts)

    def place(self, task: PrefillTask, view: ClusterView) -> Decision:
        """Choose a place; the prefill pool must not be empty."""
        slo, pool, decode = task.slo or self.slo, view.prefill, view.decode
        prompt = float(task.prompt_tokens)
        prefill, prefill_s = entries.best_prefill(
            *self.costs.packed, pool.tokens, prompt, float(pool.budget_tokens)
        )
        best, decode_s = -1, math.inf
        chunks: tuple[int, ...] = ()
        if view.bound is not None:
            best, decode_s, chunks = self._decode(
                decode.batch,
                decode.context_tokens,
                decode.local_prefills,
                decode.budget_tokens,
                -1 if view.fresh else view.bound,
                prompt,
                deflect.BETA * (slo.itl_ms / 1e3),
            )
        named: Estimates = ((str(pool.worker_ids[prefill]), prefill_s),)
        if best < 0:
            return decision(view, prefill, NOT_DEFLECTED, named)
        named = (("local", decode_s), *named)
        if not deflect.deflects(decode_s, prefill_s, slo.ttft_ms / 1e3, deflect.ALPHA):
            return decision(view, prefill, NOT_DEFLECTED, named)
        made = decision(view, LOCAL, DEFLECTED, named)
        return Decision(
            made.place,
            None,
            made.reason,
            named,
            decode_id=None if best == view.bound else decode.worker_ids[best],
            chunks=chunks if decode.chunked[best] else (),
        )
