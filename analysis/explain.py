# SPDX-License-Identifier: Apache-2.0
"""Why a request went where it went, as lines of text, from the decision log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.routing.decision_record import DecisionRow, Logged, joined, read_rows


def explain(lines: Iterable[str], request_id: str) -> list[str]:
    """A page on each leg of a request; empty when the log does not know it.

    A beginning of the id will do, if only one request has it.
    """
    known = joined(read_rows(lines))
    exact = [each for each in known if each.decision.request_id == request_id]
    found = exact or [each for each in known if each.decision.request_id.startswith(request_id)]
    if len({each.decision.request_id for each in found}) > 1:
        return []
    return [line for each in found for line in _page(each)]


def _page(logged: Logged) -> list[str]:
    row = logged.decision
    return [
        _title(logged),
        f"  prompt {row.prompt_tokens} tokens, {row.history_tokens} of them at its decode worker; "
        f"limits TTFT {row.ttft_limit_ms:g} ms, ITL {row.itl_limit_ms:g} ms",
        f"  chosen: {_choice(row)}",
        *_would(row),
        *_table(row),
        *_went(logged),
    ]


def _title(logged: Logged) -> str:
    row, router = logged.decision, logged.router
    leg = f", leg {row.migrations + 1}" if row.migrations else ""
    session = f", session {row.session_id} round {row.round}" if row.session_id else ""
    tenant = f", tenant {row.tenant}" if row.tenant else ""
    by = f" by {row.policy} (replica {router.replica} of {router.replicas})" if router else ""
    return f"{row.request_id}{leg}{session}{tenant}{by}"


def _choice(row: DecisionRow) -> str:
    if row.place is None:
        return "nothing: it ended before a decision"
    where = _name(row.worker_id, row.rank) if row.place == "remote" else _name(row.bound)
    if row.place == "local" and row.decode_id is not None:
        where = _name(row.decode_id)
    return (
        f"{row.place} at {where}, because {row.reason}; predicted TTFT {_ms(row.predicted_ttft_ms)}"
    )


def _would(row: DecisionRow) -> list[str]:
    if row.would_place is None:
        return []
    return [f"  shadow: the rule would have gone {row.would_place} because {row.would_reason}"]


def _table(row: DecisionRow) -> list[str]:
    """Every candidate that the rule saw."""
    head = (
        f"  {'candidate':<28}{'cached':>8}{'queued':>9}{'queue':>10}{'TTFT':>11}{'misses':>9}"
        f"{'batch':>7}{'room':>9}"
    )
    lines = [head]
    pool = row.prefill
    for k, worker_id in enumerate(pool.worker_ids):
        rank = pool.ranks[k] if pool.ranks else 0
        mark = row.place == "remote" and (worker_id, rank) == (row.worker_id, row.rank)
        lines.append(
            f"{'  * ' if mark else '    '}{'prefill ' + _name(worker_id, rank):<26}"
            f"{pool.cached_tokens[k]:>8}{pool.queued_tokens[k]:>9}"
            f"{_s(pool.queue_s[k]):>10}{_s(pool.ttft_s[k]):>11}{_number(pool.misses, k):>9}"
        )
    decode = row.decode
    place = row.bound if row.decode_id is None else row.decode_id
    for k, worker_id in enumerate(decode.worker_ids):
        kv_tokens = decode.kv_tokens[k]
        room = "?" if kv_tokens is None else str(kv_tokens - decode.held_tokens[k])
        mark = row.place == "local" and worker_id == place
        bound = " (bound)" if worker_id == row.bound else ""
        lines.append(
            f"{'  * ' if mark else '    '}{'decode ' + _name(worker_id) + bound:<26}"
            f"{decode.cached_tokens[k]:>8}{decode.local_prefills[k]:>8}L"
            f"{_s(decode.queue_s[k]):>10}{_s(decode.ttft_s[k]):>11}{_number(decode.misses, k):>9}"
            f"{decode.batch[k]:>7}{room:>9}"
        )
    for pool_name, seen in (("prefill", row.prefill), ("decode", row.decode)):
        if seen.of > len(seen.worker_ids):
            lines.append(f"    and {seen.of - len(seen.worker_ids)} more {pool_name} workers")
    return lines


def _went(logged: Logged) -> list[str]:
    row, outcome = logged.decision, logged.outcome
    parts = [f"prefill leg {row.outcome}"]
    if row.queue_ms is not None:
        parts.append(f"waited {row.queue_ms:.0f} ms")
    if row.prefill_ms is not None:
        parts.append(f"prefill {row.prefill_ms:.0f} ms (predicted {_ms(row.predicted_ms)})")
    if row.moved:
        parts.append(f"moved {row.moved} times while it waited")
    if row.reroutes:
        parts.append(f"decided again {row.reroutes} times")
    lines = [f"  then: {', '.join(parts)}"]
    if outcome is not None:
        lines.append(
            f"  stream {outcome.finish}: TTFT {_ms(outcome.ttft_ms)}, "
            f"{outcome.output_tokens} tokens, ITL {_ms(outcome.itl_ms)}, "
            f"longest gap {_ms(outcome.itl_max_ms)}"
        )
    return lines


def _name(worker_id: int | None, rank: int = 0) -> str:
    if worker_id is None:
        return "?"
    return f"{worker_id:x}" + (f".{rank}" if rank else "")


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f} ms"


def _s(value: float | None) -> str:
    return "?" if value is None else f"{value * 1e3:.1f} ms"


def _number(column: tuple[float | None, ...], k: int) -> str:
    value = column[k] if k < len(column) else None
    return "" if value is None else f"{value:.3f}"
