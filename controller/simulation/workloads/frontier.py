# SPDX-License-Identifier: Apache-2.0
"""Rows of a Frontier trace as a workload: sessions, round plans, tools, priorities.

Owns: what lengths and block ids mean. Does not own: the text (../trace_formats/frontier).

- A row arrives at its own time; its later rounds follow the earlier ones after the tool latency.
- `session_id` is affinity (`session`), `cohort` the tenant; Frontier's priority, lower first, is
  negated.
- **Lengths.** `WHOLE`: every prompt length is the whole prompt, as in Frontier's default mode. A
  later round that is longer than the earlier one with its answer continues its text, a shorter one
  does not. `NEW`: a length is what the session's text grows by, Frontier's session-prefix mode.
- **Blocks.** WHOLE: a row's `block_hash_ids` name the head of each of its rounds' prompts. NEW:
  blocks follow from session and position, `block_hash_ids` are not read. Rows of a session arrive
  by the clock, so they are no rounds of one stream, and the answers between them count as text
  that the next row's prompt brings: only what earlier rows have *prefilled* can be reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from controller.simulation.trace_formats.frontier import FrontierRow
from controller.simulation.traces import TraceError
from controller.simulation.workloads.rows import numbered
from controller.simulation.workloads.workload import Workload, validate
from controller.types import IntArray


class FrontierLengths(str, Enum):
    """What `num_prefill_tokens` counts."""

    WHOLE = "whole"
    NEW = "new"


@dataclass
class _Columns:
    """The workload under construction, one entry a request."""

    arrival_s: list[float] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    session: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    tenant: list[int] = field(default_factory=list)
    ids: list[Sequence[Any]] = field(default_factory=list)

    def add(
        self, row: FrontierRow, turn: int, prompt: int, session: int, tenant: int, number: int
    ) -> bool:
        """Round `turn` of a row, request `number` of its session; whether its text is a new one."""
        at = len(self.prompt)
        continues = turn > 0 and prompt > self.prompt[-1] + self.output[-1]
        self.arrival_s.append(np.nan if turn else row.arrival_s)
        self.think_s.append(row.tool_s if turn else 0.0)
        self.prompt.append(prompt)
        self.output.append(row.rounds[turn][1])
        self.session.append(session)
        self.round.append(number)
        self.stream.append(self.stream[-1] if continues else at)
        self.after.append(at - 1 if turn else -1)
        self.priority.append(-row.priority)
        self.tenant.append(tenant)
        return not continues


def frontier_workload(
    rows: Iterable[FrontierRow],
    source: str,
    name: str,
    *,
    lengths: FrontierLengths = FrontierLengths.WHOLE,
    block_tokens: int = 16,
) -> Workload:
    """All rows; `block_tokens` is the block size of the engine that made `block_hash_ids`.

    TraceError, with the row, for more ids than its longest prompt has blocks.
    """
    columns = _Columns()
    sessions: dict[str, int] = {}
    cohorts: dict[str | None, int] = {}
    requests: Counter[int] = Counter()
    context: Counter[int] = Counter()
    for row in rows:
        key = row.session_id if row.session_id is not None else f"\0{row.line}"
        session = sessions.setdefault(key, len(sessions))
        tenant = cohorts.setdefault(row.cohort, len(cohorts))
        prompts = _prompts(row, lengths, context[session])
        _check_ids(row, prompts, source, lengths, block_tokens)
        for turn, prompt in enumerate(prompts):
            new = columns.add(row, turn, prompt, session, tenant, requests[session])
            columns.ids.append(_ids(row, session, prompt, lengths, block_tokens) if new else ())
            requests[session] += 1
        context[session] = columns.prompt[-1] + columns.output[-1]
    return _workload(columns, name, block_tokens)


def _prompts(row: FrontierRow, lengths: FrontierLengths, grown: int) -> list[int]:
    if lengths is FrontierLengths.WHOLE:
        return [prompt for prompt, _ in row.rounds]
    prompts = []
    for new, output in row.rounds:
        prompts.append(grown + new)
        grown += new + output
    return prompts


def _check_ids(
    row: FrontierRow,
    prompts: Sequence[int],
    source: str,
    lengths: FrontierLengths,
    block_tokens: int,
) -> None:
    blocks = -(-max(prompts) // block_tokens)
    if lengths is FrontierLengths.WHOLE and len(row.block_ids) > blocks:
        raise TraceError(
            f"{source}:{row.line}: block_hash_ids has {len(row.block_ids)} ids, a prompt of "
            f"{max(prompts)} tokens has {blocks} blocks of {block_tokens}; fix the row or give the "
            "block size of the trace"
        )


def _ids(
    row: FrontierRow, session: int, prompt: int, lengths: FrontierLengths, block_tokens: int
) -> Sequence[Any]:
    """Keys of the prompt's blocks; equal keys are equal blocks."""
    if lengths is FrontierLengths.WHOLE:
        return row.block_ids[: -(-prompt // block_tokens)]
    if row.session_id is None:
        return ()
    return [(session, position) for position in range(prompt // block_tokens)]


def _workload(columns: _Columns, name: str, block_tokens: int) -> Workload:
    keys: dict[Any, int] = {}
    ids = [keys.setdefault(key, len(keys)) for each in columns.ids for key in each]
    counts = [len(each) for each in columns.ids]
    return validate(
        Workload(
            name=name,
            arrival_s=np.array(columns.arrival_s, dtype=np.float64),
            think_s=np.array(columns.think_s, dtype=np.float64),
            prompt_tokens=_whole(columns.prompt),
            output_tokens=_whole(columns.output),
            session=_whole(columns.session),
            round=_whole(columns.round),
            stream=numbered(_whole(columns.stream)),
            after=_whole(columns.after),
            priority=_whole(columns.priority),
            tenant=_whole(columns.tenant),
            block_tokens=block_tokens,
            block_ids=_whole(ids),
            block_starts=np.concatenate([[0], np.cumsum(_whole(counts))]),
        )
    )


def _whole(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
