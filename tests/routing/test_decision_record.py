# SPDX-License-Identifier: Apache-2.0
"""The decision log's rows: what is written is read back, and joined with what became of it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.routing.decision_record import (
    SCHEMA,
    DecisionRow,
    DecodeSeen,
    OutcomeRow,
    PrefillSeen,
    RouterRow,
    as_line,
    joined,
    read_line,
    read_rows,
)

pytestmark = pytest.mark.unit

ROUTER = RouterRow("a1", 0, 1, "m", "relay", "toll", "dense70b_tp4", 1000.0, 50.0, 1.0, 5.0)


def decision(request_id="r", migrations=0, **changes):
    row = {
        "request_id": request_id,
        "migrations": migrations,
        "session_id": None,
        "round": None,
        "tenant": None,
        "arrived_unix_s": 1.5,
        "arrived_s": 2.5,
        "decided_s": 2.75,
        "prompt_tokens": 100,
        "history_tokens": 0,
        "sequences": 1,
        "ttft_limit_ms": 1000.0,
        "itl_limit_ms": 50.0,
        "policy": "toll",
        "params_version": 0,
        "outcome": "handed_over",
    }
    return DecisionRow(**(row | changes))


def outcome(request_id="r", migrations=0):
    return OutcomeRow(request_id, migrations, 7, "finished", 80.0, None, None, 1, 9.0)


ids = st.integers(0, 2**63 - 1)
seconds = st.floats(0, 1e4).map(lambda s: round(s, 6))
counts = st.integers(0, 10**9)


@given(
    workers=st.lists(st.tuples(ids, counts, seconds, st.none() | seconds), max_size=5),
    place=st.sampled_from(["local", "remote", None]),
    worker=st.none() | ids,
    queue_ms=st.none() | seconds,
)
def test_a_row_is_read_as_it_was_written(workers, place, worker, queue_ms):
    columns = tuple(zip(*workers, strict=True)) or ((), (), (), ())
    row = decision(
        place=place,
        worker_id=worker,
        queue_ms=queue_ms,
        prefill=PrefillSeen(
            worker_ids=columns[0],
            queued_tokens=columns[1],
            queue_s=columns[2],
            misses=columns[3],
            of=len(workers),
        ),
        decode=DecodeSeen(worker_ids=columns[0], kv_tokens=columns[1], ttft_s=columns[3]),
    )
    assert read_line(as_line(row)) == row


@pytest.mark.parametrize("unknown", [math.nan, math.inf, None])
def test_what_is_unknown_is_null_and_never_zero(unknown):
    line = as_line(decision(queue_ms=unknown, prefill=PrefillSeen(queue_s=(unknown,))))
    assert json.loads(line)["queue_ms"] is None
    row = read_line(line)
    assert row.queue_ms is None and row.prefill.queue_s == (None,)


def test_a_file_names_its_schema_and_its_router_first():
    assert json.loads(as_line(ROUTER))["schema"] == SCHEMA
    assert read_line(as_line(ROUTER)) == ROUTER


@pytest.mark.parametrize("line", ["", "{", "[]", '{"kind": "other"}', '{"kind": "decision"}', "3"])
def test_a_line_that_cannot_be_read_is_none(line):
    assert read_line(line) is None


def test_keys_of_a_later_version_are_passed_over():
    later = json.dumps(json.loads(as_line(outcome())) | {"colour": "blue"})
    assert read_line(later) == outcome()


def test_a_decision_is_joined_with_its_own_legs_outcome():
    lines = [
        ROUTER,
        decision("r"),
        outcome("r", 1),
        decision("r", 1),
        decision("s"),
        outcome("r", 0),
    ]
    logged = joined(read_rows(map(as_line, lines)))
    assert [each.decision.key for each in logged] == [("r", 0), ("r", 1), ("s", 0)]
    assert [each.outcome and each.outcome.key for each in logged] == [("r", 0), ("r", 1), None]
    assert all(each.router == ROUTER for each in logged)
