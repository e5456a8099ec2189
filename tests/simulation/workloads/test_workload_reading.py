# SPDX-License-Identifier: Apache-2.0
"""Traces as workloads: what their rows mean, and the one line of every refusal."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import UserError
from controller.simulation.synthetic import CalmThenBurst, synthesize
from controller.simulation.trace_formats import dump_trace
from controller.simulation.traces import TraceError
from controller.simulation.workloads.bridge import from_trace, to_trace
from controller.simulation.workloads.closed_loop import closed_loop
from controller.simulation.workloads.frontier import FrontierLengths
from controller.simulation.workloads.reading import ReadOptions, parse_workload
from controller.simulation.workloads.rollouts import rollouts
from controller.simulation.workloads.workload import engine_block_ids, validate

pytestmark = pytest.mark.unit

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"
WIDE = f"{HEADER},session_id,cohort,priority,block_hash_ids,tool_call_latency,thinking_depth"
PLANS = f"{HEADER},session_id,tool_call_latency,thinking_round_plans_json"
NEW = ReadOptions(frontier_lengths=FrontierLengths.NEW)


def plan(*rounds: tuple[int, int]) -> str:
    """A quoted cell with one plan a round."""
    plans = [{"num_prefill_tokens": p, "num_decode_tokens": d} for p, d in rounds]
    return '"' + json.dumps(plans).replace('"', '""') + '"'


def test_mooncake_ids_become_dense_blocks_of_512() -> None:
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [900, -7]},
        {"timestamp": 5, "input_length": 513, "output_length": 5, "hash_ids": [900, 12]},
    ]
    w = parse_workload("\n".join(map(json.dumps, rows)), "t.jsonl")
    assert w.block_tokens == 512
    assert w.block_ids.tolist() == [2, 0, 2, 1]
    first, second = engine_block_ids(w, 0, 16), engine_block_ids(w, 1, 16)
    assert len(first) == 1000 // 16
    assert np.array_equal(first[:32], second)


def test_frontier_rows_keep_session_tenant_priority_and_blocks() -> None:
    text = f"{WIDE}\n0.0,32,2,7,a,0,11|22,,\n10.0,32,2,7,b,-1,11|23,,\n10.5,8,1,,,2.0,,,1\n"
    w = parse_workload(text, "t.csv")
    assert w.arrival_s.tolist() == [0, 10, 10.5]
    assert w.session.tolist() == [0, 0, 1]
    assert w.round.tolist() == [0, 1, 0]
    assert w.tenant.tolist() == [0, 1, 2]
    assert w.priority.tolist() == [0, 1, -2]
    assert w.block_ids.tolist() == [0, 1, 0, 2]
    assert (w.history_tokens == 0).all()


def test_frontier_round_plans_follow_after_the_tool() -> None:
    text = f"{PLANS}\r\n0.5,96,8,s,0.25,{plan((48, 16), (96, 8))}\r\n1,10,2,,,\r\n"
    w = parse_workload(text, "t.csv")
    assert w.after.tolist() == [-1, 0, -1]
    assert w.think_s.tolist() == [0, 0.25, 0]
    assert w.prompt_tokens.tolist() == [48, 96, 10]
    assert w.history_tokens.tolist() == [0, 64, 0]
    assert w.session.tolist() == [0, 0, 1]


def test_a_shorter_later_prompt_is_another_text() -> None:
    w = parse_workload(f"{PLANS}\n0,32,8,s,,{plan((48, 16), (32, 8))}\n", "t.csv")
    assert w.after.tolist() == [-1, 0]
    assert w.stream.tolist() == [0, 1]
    assert w.think_s[1] == 0.001


def test_new_lengths_grow_the_session_over_its_rows() -> None:
    w = parse_workload(
        f"{HEADER},session_id\n0.0,32,16,7\n10.0,8,8,7\n11,8,8,8\n", "t.csv", None, NEW
    )
    assert w.prompt_tokens.tolist() == [32, 56, 8]
    assert np.array_equal(engine_block_ids(w, 0, 16), engine_block_ids(w, 1, 16)[:2])


def test_new_lengths_grow_over_round_plans_too() -> None:
    w = parse_workload(f"{PLANS}\n0,32,8,s,,{plan((48, 16), (32, 8))}\n", "t.csv", None, NEW)
    assert w.prompt_tokens.tolist() == [48, 96]
    assert w.history_tokens.tolist() == [0, 64]


def test_a_prompt_too_long_for_any_server_stays_in() -> None:
    w = parse_workload(f"{HEADER}\n0,16000000,16000000\n", "t.csv")
    assert w.prompt_tokens.tolist() == [16_000_000]


FRONTIER_ERRORS = {
    "column": ("arrived_at,num_prefill_tokens", "", 1, "column 'num_decode_tokens' is missing"),
    "twice": (f"{HEADER},priority,priority", "", 1, "a column appears twice"),
    "short row": (HEADER, "0,5", 3, "2 columns where the header has 3"),
    "quote": (HEADER, '0,5,"5', 3, "broken CSV"),
    "NaN time": (HEADER, "nan,5,5", 3, "arrived_at is 'nan'; give a finite"),
    "no time": (HEADER, ",5,5", 3, "arrived_at is ''"),
    "negative time": (HEADER, "-1,5,5", 3, "arrived_at is '-1'; give a finite"),
    "unsorted": (HEADER, "0.4,5,5", 3, "arrived_at 0.4 is before the previous row's 0.5"),
    "negative": (HEADER, "1,-5,5", 3, "num_prefill_tokens is -5; give 1 to"),
    "no answer": (HEADER, "1,5,0", 3, "num_decode_tokens is 0; give 1 to"),
    "fraction": (HEADER, "1,5.5,5", 3, "num_prefill_tokens is '5.5'; give whole numbers"),
    "empty length": (HEADER, "1,,5", 3, "num_prefill_tokens is ''"),
    "ids": (
        f"{HEADER},block_hash_ids",
        "1,16,5,1|2",
        3,
        "block_hash_ids has 2 ids, a prompt of 16",
    ),
    "id": (f"{HEADER},block_hash_ids", "1,32,5,1|x", 3, "block_hash_ids is 'x'; give whole"),
    "priority": (f"{HEADER},priority", "1,5,5,high", 3, "priority is 'high'; give whole numbers"),
    "tool": (f"{HEADER},tool_call_latency", "1,5,5,-1", 3, "tool_call_latency is '-1'"),
    "session": (f"{HEADER},session_id", "1,5,5,a b", 3, "printable ASCII"),
    "depth": (f"{HEADER},thinking_depth", "1,5,5,2", 3, "thinking_depth is '2', the row has 1"),
    "plans": (f"{HEADER},thinking_round_plans_json", "1,5,5,{}", 3, "give a JSON list of round"),
    "no plans": (f"{HEADER},thinking_round_plans_json", "1,5,5,[]", 3, "give a JSON list of round"),
    "last": (
        f"{HEADER},thinking_round_plans_json",
        f"1,5,5,{plan((5, 5), (6, 5))}",
        3,
        "the last round plan is (6, 5), the row's own lengths are (5, 5)",
    ),
    "plan": (
        f"{HEADER},thinking_round_plans_json",
        f"1,5,5,{plan((0, 5), (5, 5))}",
        3,
        "a round's num_prefill_tokens is 0",
    ),
}


@pytest.mark.parametrize("case", FRONTIER_ERRORS)
def test_frontier_error_names_file_line_and_remedy(case: str) -> None:
    header, bad, number, message = FRONTIER_ERRORS[case]
    good = "0.5,1,1" + "," * (header.count(",") - 2)
    with pytest.raises(TraceError) as caught:
        parse_workload(f"{header}\n{good}\n{bad}\n", "dir/t.csv")
    assert str(caught.value).startswith(f"dir/t.csv:{number}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_format_follows_the_header_and_a_given_one_wins() -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,2\n"
    assert len(parse_workload(azure, "t.csv")) == 1
    assert len(parse_workload(f"{HEADER}\n0,1,2\n", "t.txt")) == 1
    with pytest.raises(TraceError, match=r"t\.csv:1: column 'arrived_at' is missing"):
        parse_workload(azure, "t.csv", "frontier")
    with pytest.raises(TraceError, match="unknown format 'weka'; known: mooncake, azure, frontier"):
        parse_workload(azure, "t.csv", "weka")
    with pytest.raises(TraceError, match="only a header"):
        parse_workload(f"{HEADER}\n", "t.csv")


def quantised() -> str:
    """Six requests every 3 s."""
    row = {"input_length": 10, "output_length": 2}
    stamps = [3000 * (number // 6) for number in range(120)]
    return "\n".join(json.dumps({"timestamp": at, **row}) for at in stamps)


def test_a_quantised_clock_is_spread_inside_its_bins_or_named_as_batches() -> None:
    spread = parse_workload(quantised(), "q.jsonl")
    assert spread.name == "q (3 s clock, spread)"
    assert len(set(spread.arrival_s.tolist())) == 120
    assert np.bincount((spread.arrival_s // 3).astype(int)).tolist() == [6] * 20
    again = parse_workload(quantised(), "q.jsonl")
    other = parse_workload(quantised(), "q.jsonl", None, ReadOptions(seed=1))
    assert np.array_equal(spread.arrival_s, again.arrival_s)
    assert not np.array_equal(spread.arrival_s, other.arrival_s)
    batches = parse_workload(quantised(), "q.jsonl", None, ReadOptions(spread_bins=False))
    assert batches.name == "q (batches every 3 s)"
    assert len(set(batches.arrival_s.tolist())) == 20


def test_a_trace_with_sessions_survives_the_way_there_and_back() -> None:
    trace = synthesize(CalmThenBurst(calm_s=5, burst_s=2), 3)
    assert dump_trace(to_trace(from_trace(trace))).count("\n") == len(list(trace.requests()))
    w = from_trace(trace)
    again = from_trace(to_trace(w))
    for column in ("arrival_s", "think_s", "prompt_tokens", "output_tokens", "stream", "after"):
        assert np.array_equal(getattr(w, column), getattr(again, column), equal_nan=True)
    assert [engine_block_ids(w, row, 16).tolist() for row in range(len(w))] == [
        engine_block_ids(again, row, 16).tolist() for row in range(len(w))
    ]


def test_what_a_trace_cannot_say_is_refused() -> None:
    with pytest.raises(TraceError, match="a trace has no closed loop"):
        to_trace(closed_loop(2, 5, 0))
    with pytest.raises(TraceError, match="shared blocks of 16 tokens, a trace has 512"):
        to_trace(rollouts(2, 2, 0))


CELLS = st.text(alphabet='0123456789.,-|"[]{}ab\r\n ', max_size=12) | st.sampled_from(
    ["0", "1", "7", "11|22", "nan", plan((1, 1), (3, 1)), plan((1, 1))]
)


@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=7), max_size=4),
    st.sampled_from([HEADER, WIDE, PLANS]),
    st.sampled_from(FrontierLengths),
)
def test_any_cells_are_a_valid_workload_or_a_user_error(
    rows: list[list[str]], header: str, lengths: FrontierLengths
) -> None:
    text = "\n".join([header, *(",".join(cells) for cells in rows)])
    try:
        options = ReadOptions(frontier_lengths=lengths)
        validate(parse_workload(text, "t.csv", "frontier", options))
    except UserError as error:
        assert "\n" not in str(error)


@given(st.text(), st.sampled_from(["t.jsonl", "t.csv", "t"]))
def test_any_text_is_a_valid_workload_or_a_user_error(text: str, source: str) -> None:
    try:
        validate(parse_workload(text, source))
    except UserError as error:
        assert "\n" not in str(error)


LENGTHS = st.integers(min_value=1, max_value=4000)


@given(st.lists(st.tuples(st.integers(0, 10**7), LENGTHS, LENGTHS), min_size=1, max_size=8))
def test_mooncake_rows_come_through_unchanged(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    text = "\n".join(
        json.dumps(
            {
                "timestamp": at,
                "input_length": new,
                "output_length": out,
                "hash_ids": list(range(-(-new // 512))),
            }
        )
        for at, new, out in rows
    )
    w = parse_workload(text, "t.jsonl", None, ReadOptions(spread_bins=False))
    assert w.arrival_s.tolist() == [at / 1000 for at, _, _ in rows]
    assert w.prompt_tokens.tolist() == [new for _, new, _ in rows]
    assert w.output_tokens.tolist() == [out for _, _, out in rows]
