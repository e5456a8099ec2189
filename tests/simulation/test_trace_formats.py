# SPDX-License-Identifier: Apache-2.0
"""Trace files as text: what is read, and the one line of every refusal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import UserError
from controller.simulation.synthetic import CalmThenBurst, synthesize
from controller.simulation.trace_formats import dump_trace, parse_trace
from controller.simulation.traces import TraceError

pytestmark = pytest.mark.unit

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def jsonl(*rows: object) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def row(**more: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 600, "output_length": 5, **more}


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in row().items() if name != key}


def test_mooncake_rows_become_sessions_of_one_round() -> None:
    trace = parse_trace(jsonl(row(hash_ids=[7, 8]), row(timestamp=1500)), "a/demo.jsonl")
    first, second = trace.sessions
    assert trace.name == "demo"
    assert (first[0].arrival_s, first[0].prompt_tokens, first[0].block_ids) == (0.0, 600, (7, 8))
    assert (second[0].arrival_s, second[0].block_ids, second[0].line) == (1.5, (), 2)
    assert first[0].session_id != second[0].session_id


def test_later_rounds_carry_the_history_in_their_prompt() -> None:
    text = jsonl(
        row(session_id="a"),
        row(session_id="b", timestamp=10),
        {"session_id": "a", "delay": 700, "input_length": 40, "output_length": 3},
        {"session_id": "a", "delay": 0, "input_length": 1, "output_length": 1},
    )
    trace = parse_trace(text, "t.jsonl")
    a, b = trace.sessions
    assert [request.prompt_tokens for request in a] == [600, 600 + 5 + 40, 645 + 3 + 1]
    assert [request.think_s for request in a] == [0.0, 0.7, 0.0]
    assert [request.arrival_s for request in a] == [0.0, None, None]
    assert [request.round for request in a] == [0, 1, 2]
    assert len(b) == 1


def test_azure_times_keep_seven_digits_and_start_at_zero() -> None:
    text = (
        f"{HEADER}\r\n2023-11-16 18:17:59.9799601,4808,10\r\n"
        "2023-11-16 18:18:00.0319600,3180,8\r\n2024-01-01 00:00:00,1,1"
    )
    trace = parse_trace(text, "t.csv")
    arrivals = [session[0].arrival_s for session in trace.sessions]
    assert arrivals[0] == 0.0
    assert arrivals[1] == pytest.approx(0.0519999, abs=1e-9)
    assert [s[0].prompt_tokens for s in trace.sessions] == [4808, 3180, 1]
    assert trace.sessions[0][0].line == 2


def test_azure_accepts_offsets_and_other_columns() -> None:
    text = (
        f"model,{HEADER}\n x , 2024-05-10 00:00:00.009930+00:00 , 2162 , 5\n"
        "x,2024-05-10 02:00:01.009930+02:00,2399,6\n"
    )
    trace = parse_trace(text, "t.csv")
    assert [session[0].arrival_s for session in trace.sessions] == [0.0, 1.0]


@pytest.mark.parametrize("source", ["t.jsonl", "t.json", "t", "t.txt"])
def test_format_follows_extension_then_content(source: str) -> None:
    assert len(parse_trace(jsonl(row()), source).sessions) == 1


def test_azure_is_recognised_by_its_header_and_a_given_format_wins() -> None:
    text = f"\ufeff{HEADER}\n2023-11-16 18:17:03,1,2\n"
    assert len(parse_trace(text, "t").sessions) == 1
    assert len(parse_trace(text, "t.jsonl", "azure").sessions) == 1


MOONCAKE_ERRORS = {
    "broken JSON": ('{"timestamp": 0', "broken JSON"),
    "not an object": ("[1]", "expected a JSON object, found list"),
    "deep nesting": ("[" * 100_000, "broken JSON"),
    "huge integer": ('{"timestamp": ' + "1" * 5000 + "}", "broken JSON"),
    "no timestamp": (without("timestamp"), "'timestamp' for a first round or 'delay'"),
    "no input": (without("input_length"), "'input_length' is missing"),
    "no output": (without("output_length"), "'output_length' is missing"),
    "negative": (row(input_length=-3), "input_length is -3; give 1 to"),
    "zero": (row(output_length=0), "output_length is 0; give 1 to"),
    "too many": (row(input_length=10**12), "input_length is 1000000000000; give 1 to"),
    "fraction": (row(input_length=1.5), "input_length is 1.5; give a whole number"),
    "text": (row(input_length="many"), "input_length is 'many'; give a whole number"),
    "boolean": (row(output_length=True), "output_length is True; give a whole number"),
    "null": (row(output_length=None), "output_length is None; give a whole number"),
    "NaN length": ('{"timestamp": 0, "input_length": NaN}', "NaN is not a number"),
    "NaN time": ('{"timestamp": NaN, "input_length": 1}', "NaN is not a number"),
    "infinite time": ('{"timestamp": -Infinity}', "-Infinity is not a number"),
    "overflowing time": (
        '{"timestamp": 1e999, "input_length": 1, "output_length": 1}',
        "give a finite number of milliseconds",
    ),
    "negative time": (row(timestamp=-1), "timestamp is -1; give a finite"),
    "time as text": (row(timestamp="0"), "timestamp is '0'; give milliseconds"),
    "wall clock": (row(timestamp=1.7e12), "milliseconds from the start of the trace"),
    "too few ids": (row(hash_ids=[1]), "hash_ids has 1 ids, an input_length of 600 needs 2"),
    "too many ids": (row(hash_ids=[1, 2, 3]), "hash_ids has 3 ids"),
    "ids not a list": (row(hash_ids="ab"), "hash_ids is 'ab'; give a list"),
    "ids not whole": (row(hash_ids=[1, 2.5]), "give a list of whole numbers"),
    "session with a line feed": (row(session_id="a\nb"), "printable ASCII"),
    "empty session": (row(session_id=""), "printable ASCII"),
    "delay without session": (
        {"delay": 5, "input_length": 1, "output_length": 1},
        "'delay' without 'session_id'",
    ),
    "later round first": (
        {"session_id": "a", "delay": 5, "input_length": 1, "output_length": 1},
        "stands before its first",
    ),
    "both times": (row(session_id="a", delay=5), "exactly one of them"),
    "negative delay": (
        {"session_id": "ok", "delay": -5, "input_length": 1, "output_length": 1},
        "delay is -5; give a finite",
    ),
    "second first round": (row(session_id="ok", timestamp=9), "session 'ok' has begun already"),
    "backwards": (row(timestamp=4), "timestamp 4 ms is before the previous arrival's 5 ms"),
}


@pytest.mark.parametrize("case", MOONCAKE_ERRORS)
def test_mooncake_error_names_file_line_and_remedy(case: str) -> None:
    bad, message = MOONCAKE_ERRORS[case]
    text = jsonl(row(session_id="ok", timestamp=5), "", bad)
    with pytest.raises(TraceError) as caught:
        parse_trace(text, "dir/t.jsonl")
    line = str(caught.value)
    assert line.startswith("dir/t.jsonl:3: ")
    assert message in line
    assert "\n" not in line


AZURE_ERRORS = {
    "column": ("TIMESTAMP,ContextTokens", "", 1, "column 'GeneratedTokens' is missing"),
    "short row": (HEADER, "2023-11-16 18:17:03.9,5", 3, "2 columns where 3 are needed"),
    "no time": (HEADER, "soon,5,5", 3, "TIMESTAMP is 'soon'; give YYYY"),
    "NaN time": (HEADER, "NaN,5,5", 3, "TIMESTAMP is 'NaN'"),
    "no date": (HEADER, "2023-13-40 18:17:03.9,5,5", 3, "no date and time"),
    "backwards": (HEADER, "2023-11-16 18:17:02.1,5,5", 3, "before the previous row's"),
    "negative": (HEADER, "2023-11-16 18:17:04,-5,5", 3, "ContextTokens is -5; give 1 to"),
    "zero": (HEADER, "2023-11-16 18:17:04,5,0", 3, "GeneratedTokens is 0; give 1 to"),
    "fraction": (HEADER, "2023-11-16 18:17:04,5.0,5", 3, "ContextTokens is '5.0'"),
    "NaN": (HEADER, "2023-11-16 18:17:04,5,nan", 3, "GeneratedTokens is 'nan'"),
    "empty cell": (HEADER, "2023-11-16 18:17:04,,5", 3, "ContextTokens is ''"),
}


@pytest.mark.parametrize("case", AZURE_ERRORS)
def test_azure_error_names_file_line_and_remedy(case: str) -> None:
    header, bad, number, message = AZURE_ERRORS[case]
    text = f"{header}\r\n2023-11-16 18:17:03.5,1,1\r\n{bad}\r\n"
    with pytest.raises(TraceError) as caught:
        parse_trace(text, "t.csv")
    assert str(caught.value).startswith(f"t.csv:{number}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("", "t.jsonl", "t.jsonl: the file is empty"),
        (" \n\n", "t.csv", "t.csv: the file is empty"),
        (f"{HEADER}\n", "t.csv", "t.csv: only a header"),
        ("hello", "t.txt", "neither Mooncake JSONL nor Azure CSV; give --format"),
    ],
)
def test_a_file_without_requests_is_refused(text: str, source: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_trace(text, source)


def test_unknown_format_is_refused() -> None:
    with pytest.raises(TraceError, match="unknown format 'weka'; known: mooncake, azure"):
        parse_trace("x", "t", "weka")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
ROWS = st.dictionaries(
    st.sampled_from(["timestamp", "delay", "input_length", "output_length", "hash_ids"])
    | st.just("session_id"),
    JSON_VALUES,
)


@given(st.text(), st.sampled_from(["t.jsonl", "t.csv", "t"]))
def test_any_text_parses_or_is_a_user_error(text: str, source: str) -> None:
    try:
        assert parse_trace(text, source).sessions
    except UserError as error:
        assert "\n" not in str(error)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_any_rows_parse_or_are_a_user_error(rows: list[dict[str, object]]) -> None:
    try:
        assert parse_trace(jsonl(*rows), "t.jsonl").sessions
    except UserError as error:
        assert "\n" not in str(error)


@given(st.lists(st.lists(st.text(max_size=12) | st.sampled_from(["2023-11-16 18:17:04", "7"]))))
def test_any_cells_parse_or_are_a_user_error(rows: list[list[str]]) -> None:
    text = "\n".join([HEADER, *(",".join(cells) for cells in rows)])
    try:
        assert parse_trace(text, "t.csv").sessions
    except UserError as error:
        assert "\n" not in str(error)


@settings(max_examples=20)
@given(st.integers(min_value=0, max_value=2**32))
def test_a_dumped_trace_reads_back_the_same(seed: int) -> None:
    law = CalmThenBurst(calm_s=2, burst_s=1)
    trace = synthesize(law, seed)
    assert parse_trace(dump_trace(trace), "calm_then_burst.jsonl") == trace
