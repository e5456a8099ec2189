# SPDX-License-Identifier: Apache-2.0
"""Reading what routing left behind: our decision log (with its rotated parts), Dynamo's trace.

Owns: the files and their errors, the cost profile behind the estimates. Does not own: the measures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from controller.costs.model import TableCost
from controller.errors import UserError
from controller.estimation.estimate import Estimate
from controller.estimation.poa.binding import StepTime
from controller.estimation.poa.report import RoutingReport, report_of_log, report_of_trace
from controller.estimation.roster import Role
from controller.routing.decision_record import joined, read_rows
from controller.runtime.resources import read_profile
from controller.types import FloatArray

_MOST_LINES = 50_000


def routing_reader(
    decisions: Path | None, trace: Path | None, profile: str | None, ttft_limit_s: float
) -> Callable[[Estimate], RoutingReport | None]:
    """What an estimate is told about routing, read anew at each call. UserError at once."""
    if decisions is not None and trace is not None:
        raise UserError("give --decisions or --request-trace, not both")
    costs = read_profile(profile).cost_model() if profile is not None else None
    path = decisions or trace
    if path is None:
        return lambda estimate: None
    if not path.is_file():
        raise UserError(f"{path} does not exist; is the log written there?")

    def read(estimate: Estimate) -> RoutingReport | None:
        if decisions is not None:
            rows = read_rows(_lines(decisions, rotated=True))
            return report_of_log(joined(rows), None if costs is None else step_time(costs))
        workers = [worker.worker_id for worker in estimate.roster.of(Role.PREFILL)]
        time_of = None if costs is None else (lambda uncached: costs.prefill_s(0, uncached))
        return report_of_trace(_lines(path, rotated=False), workers, ttft_limit_s, time_of)

    return read


def step_time(costs: TableCost) -> StepTime:
    """A decode step by the profile; none for nobody."""

    def step(batch: FloatArray, context: FloatArray) -> FloatArray:
        none = np.zeros_like(batch)
        found = costs.steps_s(batch, context, none, none)
        found[batch <= 0] = 0.0
        return found

    return step


def _lines(path: Path, rotated: bool) -> list[str]:
    """The newest lines, oldest first; a rotated part that vanishes meanwhile is passed over."""
    parts = [path]
    if rotated:
        older = sorted(path.parent.glob(f"{path.name}.*"), key=_age, reverse=True)
        parts = [*older, path]
    lines: list[str] = []
    for part in parts:
        try:
            lines += part.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{part} cannot be read: {error.strerror or error}") from None
    return lines[-_MOST_LINES:]


def _age(path: Path) -> int:
    suffix = path.name.rpartition(".")[2]
    return int(suffix) if suffix.isdecimal() else 0
