# SPDX-License-Identifier: Apache-2.0
"""Lines of a trace, and the sessions that they make up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.simulation.trace_shaping import with_prompts
from controller.simulation.traces import Session, TraceRequest


@dataclass(frozen=True, slots=True)
class Row:
    """One line, checked by itself; what it means beside the others comes later."""

    line: int
    session_id: str | None
    arrival_s: float | None
    delay_s: float | None
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


def sessions(rows: Iterable[Row]) -> tuple[Session, ...]:
    """Group rows by session, in order of arrival; rows without one are sessions of their own."""
    grouped: dict[tuple[str, bool], list[TraceRequest]] = {}
    for row in rows:
        named = row.session_id is not None
        session_id = row.session_id if row.session_id is not None else f"line-{row.line}"
        rounds = grouped.setdefault((session_id, named), [])
        rounds.append(
            TraceRequest(
                arrival_s=row.arrival_s,
                session_id=session_id,
                round=len(rounds),
                think_s=row.delay_s or 0.0,
                prompt_tokens=row.input_tokens,
                new_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                block_ids=row.block_ids,
                line=row.line,
            )
        )
    return tuple(with_prompts(rounds) for rounds in grouped.values())
