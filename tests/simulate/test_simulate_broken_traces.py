# SPDX-License-Identifier: Apache-2.0
"""Traces that are broken in every way: one line and exit 2, or a result that counts everybody."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1039, "output_length": 18, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 5, "session_id": "a", "input_length": 600, "output_length": 4}\n'
    '{"delay": 100, "session_id": "a", "input_length": 30, "output_length": 5}\n'
    '{"timestamp": 900, "input_length": 520, "output_length": 3, "hash_ids": [0, 4]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:51.2225670,879,55\n"
)
FRONTIER = (
    "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids,tool_call_latency\n"
    "0.0,100,20,a,1|2,0.5\n"
    "0.25,160,10,b,1|3,\n"
    "1.5,300,1,a,,0.1\n"
)
KINDS = {"trace.jsonl": MOONCAKE, "azure.csv": AZURE, "frontier.csv": FRONTIER}
STRANGE = st.sampled_from(
    [
        *("", "nan", "NaN", "inf", "-Infinity", "-1", "0", "1e999", "1e9", "1.5", "null", "true"),
        *("9" * 400, "16777216", "16777217", "2147483648", "[]", "{}", "[" * 3000, '"x"', "\x00"),
        *("١٢", "\ufeff", '"', "1|x", "9" * 19, "[1,2]", "-9223372036854775809", "86400001"),
    ]
)


def ending(name: str, data: bytes) -> tuple[int, str, str]:
    """Exit code, output and errors of a run over a file with these bytes; leaves no output."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / name, Path(folder) / "out"
        path.write_bytes(data)
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(
                [
                    *("simulate", "--trace", str(path), "--json", "--quiet", "--out", str(out)),
                    *("--series-step", "1000", "--file-format", "csv"),
                ]
            )
        names = {entry.name for entry in Path(folder).iterdir()}
        assert names == ({name, "out"} if code == 0 else {name})
        return code, output.getvalue(), errors.getvalue()


def check(code: int, output: str, errors: str) -> None:
    if code == 0:
        found = json.loads(output)
        ended = ("served", "rejected", "failed", "unfinished", "never_issued")
        assert sum(found[how] for how in ended) == found["requests"] >= 1
        assert errors == ""
        return
    assert code == 2
    assert output == ""
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("equilibrium simulate: ")


def one_line(name: str, data: bytes) -> str:
    code, output, errors = ending(name, data)
    assert (code, output, len(errors.splitlines())) == (2, "", 1), errors
    return errors


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.jsonl", '{"timestamp": 0, "output_length": 1}', "t.jsonl:1: 'input_length' is missing"),
        ("t.csv", AZURE.replace("ContextTokens", "Tokens"), "t.csv:1: column 'ContextTokens'"),
        ("t.csv", FRONTIER.replace("num_decode_tokens", "x"), "t.csv:1: column 'num_decode"),
        ("t.jsonl", MOONCAKE.replace("520", "-520"), "t.jsonl:4: input_length is -520"),
        ("t.jsonl", MOONCAKE.replace("18", "0"), "t.jsonl:1: output_length is 0"),
        ("t.csv", AZURE.replace("396", "-396"), "t.csv:3: ContextTokens is -396"),
        ("t.csv", FRONTIER.replace("300", "0"), "t.csv:4: num_prefill_tokens is 0"),
        ("t.jsonl", MOONCAKE.replace("900", "2"), "t.jsonl:4: timestamp 2 ms is before"),
        ("t.jsonl", MOONCAKE.replace("900", "NaN"), "t.jsonl:4: broken JSON"),
        ("t.csv", AZURE.replace("18:15:51", "18:15:47"), "t.csv:4: TIMESTAMP"),
        ("t.csv", FRONTIER.replace("1.5,", "nan,"), "t.csv:4: arrived_at is 'nan'"),
        ("t.csv", FRONTIER.replace("1.5,", "0.1,"), "t.csv:4: arrived_at 0.1 is before"),
        ("t.csv", FRONTIER.replace("1.5,", "1e12,"), "the simulated clock ends"),
        ("t.jsonl", MOONCAKE.replace("[0, 4]", "[0]"), "t.jsonl:4: hash_ids has 1 ids"),
        ("t.csv", FRONTIER.replace("1|3", "|".join("123456789abc"[:9] * 2)), "t.csv:3: block_hash"),
        ("t.csv", AZURE.splitlines()[0], "only a header"),
        ("t.jsonl", "", "the file is empty"),
        ("t.jsonl", "\n\n", "the file is empty"),
    ],
)
def test_a_malformed_row_is_named(name, text, expected):
    assert expected in one_line(name, text.encode())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(range(256)), "not UTF-8 text"),
        (gzip.compress(MOONCAKE.encode(), mtime=0)[:40], "cut off"),
        (gzip.compress(MOONCAKE.encode(), mtime=0)[:-8] + b"\xff" * 8, "damaged"),
        (b"\x1f\x8b", "cut off"),
        (gzip.compress(b"\xff\xfe", mtime=0), "not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(data, expected):
    assert expected in one_line("t.jsonl.gz", data)


def test_a_gzip_trace_is_read():
    code, output, _ = ending("t.jsonl.gz", gzip.compress(MOONCAKE.encode(), mtime=0))
    assert code == 0
    assert json.loads(output)["workload"] == "t"


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good file of some kind with a few things wrong."""
    name = draw(st.sampled_from(sorted(KINDS)))
    text = KINDS[name]
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from([_cell, _line, _piece]))(draw, text)
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    if draw(st.integers(0, 4)) == 0:
        data = gzip.compress(data)
        data = data[: draw(st.integers(0, len(data)))]
    return name, data


def _cell(draw: st.DrawFn, text: str) -> str:
    """One number or text between separators is replaced by something strange."""
    marks = [i for i, char in enumerate(text) if char in ",:|\n{"]
    start = draw(st.sampled_from(marks)) + 1 if marks else 0
    ends = [i for i in range(start, len(text)) if text[i] in ",}|\n]"]
    end = ends[0] if ends else len(text)
    return text[:start] + draw(STRANGE) + text[end:]


def _line(draw: st.DrawFn, text: str) -> str:
    """Lines in another order, some twice, some missing."""
    lines = text.splitlines(keepends=True) or [""]
    return "".join(draw(st.lists(st.sampled_from(lines), max_size=8)))


def _piece(draw: st.DrawFn, text: str) -> str:
    """Something cut out."""
    start = draw(st.integers(0, len(text)))
    return text[:start] + text[start + draw(st.integers(0, 40)) :]


@settings(max_examples=300)
@given(broken())
def test_no_broken_file_ends_in_a_traceback(file: tuple[str, bytes]):
    check(*ending(*file))


@settings(max_examples=100)
@given(st.binary(max_size=400), st.sampled_from(["t.jsonl", "t.csv", "t", "t.gz"]))
def test_no_bytes_end_in_a_traceback(data: bytes, name: str):
    check(*ending(name, data))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["synthetic:", "synthetic:poisson", "synthetic:rollouts"]),
            st.sampled_from(["rate", "duration", "samples", "prompts", "x", ""]),
            st.sampled_from(["", "=", "=1", "=0", "=-1", "=nan", "=1e300", "=x", "=2.5"]),
        ),
        min_size=1,
        max_size=1,
    )
)
def test_no_synthetic_name_ends_in_a_traceback(parts):
    name, key, value = parts[0]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(
            ["simulate", "--trace", f"{name},{key}{value}", "--json", "--quiet", "--limit", "20"]
        )
    check(code, output.getvalue(), errors.getvalue())
