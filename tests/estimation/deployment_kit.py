# SPDX-License-Identifier: Apache-2.0
"""A deployment over time for the estimator: metric texts by target, who is registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimation_kit import look

from controller.estimation.estimate import Discovered, Estimate, Estimator, EstimatorParams
from controller.estimation.roster import Role, RoleSource, Worker
from controller.estimation.scrapes import failed

PREFILL, DECODE = 0x117942D4E88C6E89, 4866595640304856735
STARTED = "dynamo_frontend_requests_started_total"
ENDED = "dynamo_frontend_requests_total"
QUEUED = 'dynamo_frontend_stage_requests{{phase="prefill",stage="dispatch"}} {}'


def worker(number: int, role: Role, **fields: object) -> Worker:
    """A registered worker; its role by model card."""
    component = "prefill" if role is Role.PREFILL else "backend"
    values = {"source": RoleSource.CARD, "namespace": "dynamo", "component": component} | fields
    return Worker(worker_id=number, role=role, **values)  # type: ignore[arg-type]


PAIR = (worker(PREFILL, Role.PREFILL), worker(DECODE, Role.DECODE, needs=("prefill",)))


def frontend(started: float, ended: float, in_prefill: float = 0, more: str = "") -> str:
    """A frontend's text."""
    active = max(0.0, started - ended)
    return "\n".join(
        [
            f"{STARTED} {started}",
            f"{ENDED} {ended}",
            f"dynamo_frontend_active_requests {active}",
            QUEUED.format(in_prefill),
            more,
        ]
    )


def worker_text(number: int, done: float, active: float = 0, waiting: float | None = None) -> str:
    """A worker's text."""
    labels = f'dynamo_endpoint="generate",worker_id="{number:x}"'
    lines = [
        f"dynamo_component_inflight_requests{{{labels}}} {active}",
        f"dynamo_component_request_duration_seconds_count{{{labels}}} {done}",
        f"dynamo_component_request_duration_seconds_sum{{{labels}}} {done * 0.1}",
    ]
    if waiting is not None:
        lines.append(f'vllm:num_requests_waiting{{engine="0"}} {waiting}')
    return "\n".join(lines)


def estimates(
    periods: Sequence[Mapping[str, str | None]],
    workers: Sequence[Worker] = PAIR,
    complete: bool = True,
    **params: object,
) -> list[Estimate]:
    """One estimate a period of 5 s; a text None is a target that does not answer."""
    estimator = Estimator(EstimatorParams(period_s=5.0, window_s=30.0, **params))  # type: ignore[arg-type]
    found = []
    for number, texts in enumerate(periods):
        at_s = 5.0 * number
        estimator.take(
            failed(target, at_s, "connection refused") if text is None else look(text, at_s, target)
            for target, text in texts.items()
        )
        found.append(estimator.tick(at_s, Discovered(tuple(workers), complete)))
    return found
