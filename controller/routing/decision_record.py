# SPDX-License-Identifier: Apache-2.0
"""What the decision log says, row by row: the format of `decisions.jsonl` (docs/decision_log.md).

Owns: the rows' fields, writing them as JSON-ready dictionaries and reading them back, joining a
decision with what became of it. Does not own: files and rotation (controller.runtime.router.
decision_log), what is estimated from the rows (controller.estimation).

Every file begins with a `router` row, so that each is understood alone. A `decision` row is
written when a prefill leg has ended, an `outcome` row when a stream has (relay only: a broker never
sees the stream). Nothing of a prompt or an answer is in it. Unknown is null, never 0; times named
`_s` are emulated seconds, `arrived_s` and `decided_s` on the router's own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

SCHEMA = "equilibrium.decisions/1"
ROUTER, DECISION, OUTCOME = "router", "decision", "outcome"


@dataclass(frozen=True, slots=True)
class RouterRow:
    """The router that wrote the rows below, until the next such row."""

    router_id: str
    """Instance of the router: changes with every start."""
    replica: int
    replicas: int
    """Routers that shared the queues when this was written, this one counted."""
    model: str
    attachment: str
    policy: str
    profile: str
    """Cost profile that the estimates come from."""
    ttft_ms: float
    itl_ms: float
    """Limits of requests that name none."""
    time_scale: float
    started_unix_s: float
    params_version: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    """Knobs of placement and ordering in force from here on."""


@dataclass(frozen=True, slots=True)
class PrefillSeen:
    """The prefill workers as the rule saw them: parallel columns, one entry a worker.

    Of more than 16 workers those with the least estimates are kept, and the chosen one; `of` is how
    many there were.
    """

    worker_ids: tuple[int, ...] = ()
    cached_tokens: tuple[int, ...] = ()
    """Of this prompt, in the worker's own prefix cache."""
    queued_tokens: tuple[int, ...] = ()
    """Uncached tokens that wait for it or run on it."""
    queue_s: tuple[float | None, ...] = ()
    """Predicted time of that work."""
    ttft_window_s: tuple[float | None, ...] = ()
    own_s: tuple[float | None, ...] = ()
    """Predicted time of this prefill alone."""
    ttft_s: tuple[float | None, ...] = ()
    """Eq. 2: queue, this prefill, transfer."""
    misses: tuple[float | None, ...] = ()
    """Expected SLO misses that the choice causes (toll); empty for other rules."""
    ranks: tuple[int, ...] = ()
    """Data-parallel rank of each candidate; empty: all are rank 0."""
    of: int = 0


@dataclass(frozen=True, slots=True)
class DecodeSeen:
    """The decode workers as the rule saw them: parallel columns, one entry a worker."""

    worker_ids: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    context_tokens: tuple[int, ...] = ()
    held_tokens: tuple[int, ...] = ()
    """KV tokens of all that is bound to it."""
    kv_tokens: tuple[int | None, ...] = ()
    """KV tokens that it has room for."""
    cached_tokens: tuple[int, ...] = ()
    """Of this prompt: KV that is there already."""
    queue_s: tuple[float | None, ...] = ()
    """Predicted time of the local prefills that wait or run there."""
    local_prefills: tuple[int, ...] = ()
    itl_window_s: tuple[float | None, ...] = ()
    ttft_s: tuple[float | None, ...] = ()
    """Eq. 1: queue and this prefill, if it ran there."""
    misses: tuple[float | None, ...] = ()
    """As for prefill workers; null where the rule did not price it."""
    of: int = 0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One placement: what was asked, seen and chosen, and how the prefill went."""

    request_id: str
    migrations: int
    """Decode workers that the stream had left before: 0 for the first leg."""
    session_id: str | None
    round: int | None
    """Number of the request in its session, from 1; null without a session."""
    tenant: str | None
    arrived_unix_s: float
    arrived_s: float
    decided_s: float
    prompt_tokens: int
    history_tokens: int
    sequences: int
    ttft_limit_ms: float
    itl_limit_ms: float
    policy: str
    params_version: int
    outcome: str
    """handed_over, local, rejected, failed, or cancelled when nobody waited for the answer."""
    place: str | None = None
    """local or remote; null when it ended before a decision."""
    worker_id: int | None = None
    rank: int = 0
    """Data-parallel rank of that worker."""
    reason: str | None = None
    decode_id: int | None = None
    """Local, elsewhere than at the bound decode worker: there."""
    chunks: tuple[int, ...] = ()
    bound: int | None = None
    """The decode worker that streams, or most likely will (broker)."""
    fresh: bool = False
    """The session was bound just now: another decode worker could have been named."""
    predicted_ttft_ms: float | None = None
    """Of the chosen place, at the decision."""
    cached_tokens: int | None = None
    """Remote: of the prompt, in the chosen worker's cache."""
    prefill_tokens: int | None = None
    """Tokens computed there: the prompt less its cached part."""
    queue_ms: float | None = None
    predicted_ms: float | None = None
    prefill_ms: float | None = None
    moved: int = 0
    """Times that it was given to another worker while it waited (late binding)."""
    reroutes: int = 0
    would_place: str | None = None
    would_worker_id: int | None = None
    would_reason: str | None = None
    """Shadow mode: what the rule would have done."""
    prefill: PrefillSeen = PrefillSeen()
    decode: DecodeSeen = DecodeSeen()

    @property
    def key(self) -> tuple[str, int]:
        """Joins it with its `OutcomeRow`."""
        return self.request_id, self.migrations


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What became of one leg of a stream (relay)."""

    request_id: str
    migrations: int
    decode_id: int
    """The decode worker that streamed."""
    finish: str
    """finished, broken (it goes on elsewhere or failed), left (the client did), or error."""
    ttft_ms: float | None
    """Arrival at the router to the first chunk with a token, sent on; null: there was none."""
    itl_ms: float | None
    """Mean gap between tokens; null with fewer than two."""
    itl_max_ms: float | None
    output_tokens: int
    ended_s: float

    @property
    def key(self) -> tuple[str, int]:
        """Joins it with its `DecisionRow`."""
        return self.request_id, self.migrations


Row = RouterRow | DecisionRow | OutcomeRow
_KINDS: dict[str, type[Any]] = {ROUTER: RouterRow, DECISION: DecisionRow, OUTCOME: OutcomeRow}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class _Kind(msgspec.Struct):
    kind: str


def as_line(row: Row) -> str:
    """One JSON object, without a line break."""
    kind = _NAMES[type(row)]
    head = f'{{"kind":"{kind}",'
    if isinstance(row, RouterRow):
        head += f'"schema":"{SCHEMA}",'
    return head + msgspec.json.encode(row).decode()[1:]


def read_line(line: str) -> Row | None:
    """The row of a line; None for a torn line, an unknown kind or a row that lacks fields.

    Keys that this version does not know are passed over.
    """
    try:
        kind = _KINDS.get(msgspec.json.decode(line, type=_Kind).kind)
        row: Row | None = None if kind is None else msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return row


def read_rows(lines: Iterable[str]) -> list[Row]:
    """All rows of a log that can be read."""
    return [row for row in map(read_line, lines) if row is not None]


@dataclass(frozen=True, slots=True)
class Logged:
    """A decision, the router that took it, and the stream's outcome where one is known."""

    router: RouterRow | None
    decision: DecisionRow
    outcome: OutcomeRow | None


def joined(rows: Iterable[Row]) -> list[Logged]:
    """Decisions in the order of the log, each with its outcome."""
    router: RouterRow | None = None
    decisions: list[tuple[RouterRow | None, DecisionRow]] = []
    outcomes: dict[tuple[str, int], OutcomeRow] = {}
    for row in rows:
        if isinstance(row, RouterRow):
            router = row
        elif isinstance(row, OutcomeRow):
            outcomes[row.key] = row
        else:
            decisions.append((router, row))
    return [Logged(by, row, outcomes.get(row.key)) for by, row in decisions]
