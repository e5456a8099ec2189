# SPDX-License-Identifier: Apache-2.0
"""What the router would have done differently while it only watched. Pure but for reading."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Counts over the requests that were decided in shadow."""

    requests: int
    same: int
    other_worker: int
    local_instead: int
    reasons: tuple[tuple[str, int], ...]
    """Of the decisions that would have been taken, most frequent first."""

    @property
    def differing_share(self) -> float | None:
        """Share that would have gone elsewhere; None without any request."""
        return (self.requests - self.same) / self.requests if self.requests else None


def shadow_report(lines: Iterable[str]) -> ShadowReport:
    """Read a decision log; lines of acting mode, and broken last lines, do not count."""
    rows = [row for row in map(_parse, lines) if row is not None and row.get("would_place")]
    local = sum(row["would_place"] == "local" for row in rows)
    same = sum(
        row["would_place"] == row["place"] and row["would_worker_id"] == row["worker_id"]
        for row in rows
    )
    reasons = Counter(f"{row['would_place']}: {row['would_reason']}" for row in rows)
    return ShadowReport(
        requests=len(rows),
        same=same,
        other_worker=len(rows) - same - local,
        local_instead=local,
        reasons=tuple(reasons.most_common()),
    )


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
