# SPDX-License-Identifier: Apache-2.0
"""Windows off our decision log and off Dynamo's request trace."""

import json
from dataclasses import replace

import numpy as np
import pytest

from controller.estimation.poa.binding import BindingWindow, binding_cost, binding_loss
from controller.estimation.poa.from_log import LogParams, windows_of_log
from controller.estimation.poa.from_trace import fitted_time, read_trace, windows_of_trace
from controller.estimation.poa.loss import Goal
from controller.estimation.poa.report import report_of_log, report_of_trace
from controller.routing.decision_record import DecisionRow, DecodeSeen, Logged, PrefillSeen

pytestmark = pytest.mark.unit


def row(number: int, place="remote", worker_id=1, **fields) -> DecisionRow:
    values = {
        "request_id": str(number),
        "migrations": 0,
        "session_id": None,
        "round": None,
        "tenant": None,
        "arrived_unix_s": 0.0,
        "arrived_s": 0.1 * number,
        "decided_s": 0.1 * number,
        "prompt_tokens": 1000,
        "history_tokens": 0,
        "sequences": 1,
        "ttft_limit_ms": 800.0,
        "itl_limit_ms": 50.0,
        "policy": "toll",
        "params_version": 0,
        "outcome": "handed_over",
        "place": place,
        "worker_id": worker_id if place == "remote" else None,
        "reason": "toll_remote",
        "bound": 7,
        "prefill": PrefillSeen(
            worker_ids=(1, 2), queue_s=(0.5, 0.0), own_s=(0.2, 0.3), cached_tokens=(0, 0), of=2
        ),
        "decode": DecodeSeen(
            worker_ids=(7, 8), batch=(10, 0), context_tokens=(9000, 0), cached_tokens=(0, 0),
            queue_s=(0.0, 0.0), itl_window_s=(0.02, None), ttft_s=(0.4, 0.4), of=2,
        ),
    }  # fmt: skip
    return DecisionRow(**(values | fields))


def logged(*rows: DecisionRow) -> list[Logged]:
    return [Logged(None, each, None) for each in rows]


def test_a_window_has_what_the_first_row_saw_and_every_place():
    found = windows_of_log(logged(row(0), row(1, worker_id=2), row(2)))
    (w,) = found.windows
    assert found.used == 2 and found.skipped == {"left_over": 1}
    assert w.arrival_s.tolist() == pytest.approx([0.0, 0.1])
    assert w.free_s.tolist() == [0.5, 0.0, 0.0, 0.0]
    assert w.own_s[0].tolist() == pytest.approx([0.2, 0.3, 0.4, np.inf])
    assert w.chosen.tolist() == [0, 1]
    assert w.end_s == pytest.approx(0.2)
    assert w.limit_s.tolist() == [0.8, 0.8]


def test_a_session_that_nothing_ties_could_have_gone_to_every_decode_worker():
    found = windows_of_log(logged(row(0, fresh=True), row(1, place="local", fresh=True)))
    (w,) = found.windows
    assert np.isfinite(w.own_s).all()
    assert w.chosen.tolist() == [0, 2]


def test_harm_is_the_delay_of_the_running_decodes_beyond_their_own_steps():
    (w,) = windows_of_log(logged(row(0), row(1)), LogParams(step_tokens=500)).windows
    # Ten decodes, 0.4 s in two steps of 0.02 s that they would have made anyway.
    assert w.harm_s[0].tolist() == pytest.approx([0, 0, 10 * 0.36, 0])
    assert w.harm_misses[0].tolist() == [0, 0, 0, 0]
    tight = LogParams(step_tokens=500, answer_tokens=5)
    (short,) = windows_of_log(logged(row(0), row(1)), tight).windows
    assert short.harm_misses[0].tolist() == [0, 0, 10, 0]


def test_decisions_that_were_forced_or_never_taken_tell_nothing():
    rows = [
        row(0, place=None),
        row(1, reason="prefill_pool_empty", place="local"),
        row(2, migrations=1),
        row(3, prefill=PrefillSeen()),
        row(4, worker_id=99),
        row(5),
    ]
    found = windows_of_log(logged(*rows))
    assert found.windows == ()
    assert found.skipped["forced"] == 1 and found.skipped["no_decision"] == 1
    assert found.skipped["chosen_place_not_seen"] == 2


def test_a_report_says_what_it_is_over_and_what_is_missing():
    rows = [row(n, worker_id=1) for n in range(40)]
    found = report_of_log(logged(*rows), step=lambda b, c: 0.01 + 0.001 * b)
    assert found.requests == 40 and found.prefill_latency.windows == 20
    assert found.prefill_latency.ratio > 1.2  # the other worker was free all the time
    assert found.binding_latency is not None and found.binding_latency.ratio > 1.0
    assert not found.incomplete
    assert report_of_log(logged(*rows)).incomplete
    nothing = report_of_log([])
    assert nothing.prefill_latency.ratio is None and nothing.incomplete


def test_a_columns_gap_is_filled_with_a_cold_prompt():
    small = replace(row(0).prefill, worker_ids=(1,), own_s=(0.2,), queue_s=(0.5,))
    (w,) = windows_of_log(logged(row(0), row(1, prefill=small))).windows
    assert w.own_s[1, 1] == pytest.approx(0.2)


def trace_line(number, worker=1, arrived_ms=None, tokens=1000, **fields) -> str:
    request = {
        "request_id": str(number),
        "request_received_ms": 100 * number if arrived_ms is None else arrived_ms,
        "input_tokens": tokens,
        "cached_tokens": 0,
        "prefill_wait_time_ms": 0,
        "prefill_time_ms": 20 + tokens / 10,
        "worker": {"prefill_worker_id": worker},
        "replay": {"trace_block_size": 64, "input_sequence_hashes": [1, 2, number]},
    } | fields
    return json.dumps({"event": {"schema": "dynamo.request.trace.v1", "request": request}})


def test_a_trace_gives_queues_costs_and_prefixes_of_a_deployment_without_our_router():
    lines = [trace_line(n, tokens=500 + 100 * n) for n in range(9)]
    rows, skipped = read_trace([*lines, "", "not json", '{"event": {"schema": "x"}}'])
    assert len(rows) == 9 and skipped == {"unreadable": 1, "other_schema": 1}
    law = fitted_time(rows)
    assert law(1000) == pytest.approx(0.120)
    found = windows_of_trace(rows, [1, 2], 1.0, law, size=3)
    second = found.windows[1]
    # Row 2 (700 tokens, 90 ms) ended at 0.29 s, row 3 arrives at 0.3 s: nothing is ahead.
    assert second.free_s.tolist() == [0.0, 0.0]
    # Worker 1 has seen the two shared blocks; worker 2 nothing.
    assert second.own_s[0].tolist() == pytest.approx([0.10, 0.10])
    assert second.chosen.tolist() == [0, 0, 0]


def test_what_is_ahead_in_a_trace_is_what_has_not_ended():
    rows, _ = read_trace([trace_line(n, arrived_ms=n, tokens=1000) for n in range(4)])
    found = windows_of_trace(rows, [1, 2], 1.0, lambda n: 0.12, size=2)
    assert found.windows[1].free_s[0] == pytest.approx(0.001 + 0.120 - 0.002)


def test_rows_without_workers_are_counted_and_give_no_report():
    bare = json.dumps(
        {"event": {"schema": "dynamo.request.trace.v1",
                   "request": {"request_received_ms": 5, "output_tokens": 3}}}
    )  # fmt: skip
    found = report_of_trace([bare] * 3, [1, 2], 1.0)
    assert found.prefill_latency.ratio is None
    assert found.skipped == {"names_no_prefill_worker": 3}


def test_a_binding_that_piles_on_one_worker_costs():
    w = BindingWindow(
        tokens=np.array([100, 100]),
        chosen=np.array([0, 0]),
        batch=np.array([10, 0]),
        context=np.array([1000, 0]),
        limit_s=0.021,
    )

    def step(batch, context):
        return 0.01 + 0.001 * batch

    assert binding_cost(w, w.chosen, step, Goal.LATENCY) == pytest.approx(12 * 0.022)
    assert binding_cost(w, w.chosen, step, Goal.MISSES) == 12
    found = binding_loss([w], step, Goal.LATENCY)
    assert found.ratio == pytest.approx(12 * 0.022 / (10 * 0.02 + 2 * 0.012))
    assert binding_loss([w], step, Goal.MISSES).ratio is None  # none would have missed
