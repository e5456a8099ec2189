# SPDX-License-Identifier: Apache-2.0
"""The event stream parser against chunks cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.load.sse import SseEvent, SseParser

pytestmark = pytest.mark.unit

STREAM = (
    ": a comment\n\n"
    'data: {"a": "hé😀"}\n\n'
    "event: error\r\n: went wrong\r\n\r\n"
    "data: first\ndata: second\n\n"
    "data:no blank\rid: 7\rretry: 5\r\r"
    "unknown: field\ndata\n\n"
    "data: [DONE]\n\n"
).encode()

EVENTS = [
    SseEvent("", '{"a": "hé😀"}', ""),
    SseEvent("error", "", "went wrong"),
    SseEvent("", "first\nsecond", ""),
    SseEvent("", "no blank", ""),
    SseEvent("", "", ""),
    SseEvent("", "[DONE]", ""),
]


def parse(pieces: list[bytes]) -> list[SseEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


def test_a_whole_stream_in_one_piece() -> None:
    assert parse([STREAM]) == EVENTS


def test_a_stream_byte_by_byte() -> None:
    assert parse([STREAM[n : n + 1] for n in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM))))
def test_a_stream_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[low:high] for low, high in pairwise(edges)]
    assert parse(pieces) == EVENTS


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert parse([b"data: x"]) == [SseEvent("", "x", "")]


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_are_harmless(pieces: list[bytes]) -> None:
    assert all(isinstance(event, SseEvent) for event in parse(pieces))
