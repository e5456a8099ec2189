# SPDX-License-Identifier: Apache-2.0
"""One prefill on its way through the router, as it will be written down.

Owns: what is remembered while it goes on, and the row that comes of it. Does not own: the row's
format (controller.routing.decision_record), the file (decision_log.py), counting
(router_metrics.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from controller.costs.model import TableCost
from controller.routing.decision_record import DecisionRow, DecodeSeen, PrefillSeen
from controller.routing.seen import decode_seen, prefill_seen
from controller.routing.units import rank_of, worker_of
from controller.types import ClusterView, Decision, Place, PrefillTask, Slo


@dataclass(slots=True)
class RequestRecord:
    """One prefill; times are emulated milliseconds. No prompt text.

    A request has one record, and one more for each time a relay moved its stream.
    """

    task: PrefillTask
    slo: Slo
    arrived_unix_s: float
    migrations: int = 0
    """How often the stream had been moved to another decode worker before this prefill."""
    tenant: str | None = None
    round: int | None = None
    decision: Decision | None = None
    would: Decision | None = None
    """Shadow mode: the decision that only the log knows."""
    decided_s: float | None = None
    predicted_ttft_s: float | None = None
    cached_tokens: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    predicted_ms: float | None = None
    moved: int = 0
    reroutes: int = 0
    outcome: str = "cancelled"
    """handed_over, local, rejected, failed, or cancelled when nobody waited for the answer."""
    _view: ClusterView | None = None
    _chosen: Decision | None = None
    _seen: tuple[PrefillSeen, DecodeSeen, int | None, bool] = (
        PrefillSeen(),
        DecodeSeen(),
        None,
        False,
    )

    def decided(self, decision: Decision, view: ClusterView) -> None:
        """The rule has chosen; `seal` it before the view is kept for long."""
        self.decision = self._chosen = decision
        self.decided_s = view.now_s
        self._view = view
        place = "local" if decision.place is Place.LOCAL else str(decision.worker_id)
        predicted_s = dict(decision.estimates_s).get(place)
        self.predicted_ttft_s = predicted_s

    def seal(self, costs: TableCost) -> None:
        """Keep what the log needs of the view. Off the way of the request: it costs some time."""
        view, decision = self._view, self._chosen
        if view is None or decision is None:
            return
        self._view = None
        prefill = prefill_seen(costs, self.task, view, decision)
        decode = decode_seen(costs, self.task, view, decision)
        bound = None if view.bound is None else view.decode.worker_ids[view.bound]
        self._seen = prefill, decode, bound, view.fresh
        if self.predicted_ttft_s is None:
            self.predicted_ttft_s = _predicted_s(decision, prefill, decode, bound)

    def row(self, policy: str, params_version: int) -> DecisionRow:
        """As the log has it."""
        task, decision = self.task, self.decision
        prefill, decode, bound, fresh = self._seen
        place, worker_id, reason = _named(decision)
        would_place, would_worker_id, would_reason = _named(self.would)
        cached = self.cached_tokens if place == Place.REMOTE.value else None
        return DecisionRow(
            request_id=task.request_id,
            migrations=self.migrations,
            session_id=task.session_id,
            round=self.round,
            tenant=self.tenant,
            arrived_unix_s=self.arrived_unix_s,
            arrived_s=task.arrival_s,
            decided_s=task.arrival_s if self.decided_s is None else self.decided_s,
            prompt_tokens=task.prompt_tokens,
            history_tokens=task.history_tokens,
            sequences=task.sequences,
            ttft_limit_ms=self.slo.ttft_ms,
            itl_limit_ms=self.slo.itl_ms,
            policy=policy,
            params_version=params_version,
            outcome=self.outcome,
            place=place,
            worker_id=worker_id,
            rank=rank_of(decision.worker_id) if decision and decision.worker_id else 0,
            reason=reason,
            decode_id=decision.decode_id if decision else None,
            chunks=decision.chunks if decision else (),
            bound=bound,
            fresh=fresh,
            predicted_ttft_ms=_ms(self.predicted_ttft_s),
            cached_tokens=cached,
            prefill_tokens=None if cached is None else task.prompt_tokens - cached,
            queue_ms=self.queue_ms,
            predicted_ms=self.predicted_ms,
            prefill_ms=self.prefill_ms,
            moved=self.moved,
            reroutes=self.reroutes,
            would_place=would_place,
            would_worker_id=would_worker_id,
            would_reason=would_reason,
            prefill=prefill,
            decode=decode,
        )


def _predicted_s(
    decision: Decision, prefill: PrefillSeen, decode: DecodeSeen, bound: int | None
) -> float | None:
    """Eq. 1 or Eq. 2 of the chosen place, for a rule that compares no times."""
    if decision.place is Place.REMOTE:
        units = zip(prefill.worker_ids, prefill.ranks or (0,) * prefill.of, strict=False)
        wanted = decision.worker_id
        for (worker_id, rank), ttft_s in zip(units, prefill.ttft_s, strict=False):
            if wanted is not None and (worker_of(wanted), rank_of(wanted)) == (worker_id, rank):
                return ttft_s
        return None
    place = bound if decision.decode_id is None else decision.decode_id
    return dict(zip(decode.worker_ids, decode.ttft_s, strict=True)).get(place or -1)


def _named(decision: Decision | None) -> tuple[str | None, int | None, str | None]:
    """Place, worker and reason."""
    if decision is None:
        return None, None, None
    unit_id = decision.worker_id
    worker_id = None if unit_id is None else worker_of(unit_id)
    return decision.place.value, worker_id, decision.reason.value


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def unix_now() -> float:
    """Wall clock, for the log only."""
    return time.time()
