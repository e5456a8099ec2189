# SPDX-License-Identifier: Apache-2.0
"""Streams of a busy engine are compared by what their chunks add up to."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_http import joined

pytestmark = pytest.mark.unit


def chunk(text: str, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "text": text, "finish_reason": finish, **more}
    return {"id": "*", "choices": [choice]}


def test_how_tokens_are_grouped_into_chunks_does_not_count() -> None:
    one_by_one = [chunk("a"), chunk("b"), chunk("c", "length"), "[DONE]"]
    at_once = [chunk("ab"), chunk("c", "length"), "[DONE]"]
    assert joined((200, one_by_one)) == joined((200, at_once))


@pytest.mark.parametrize(
    "other",
    [
        [chunk("a"), chunk("x", "length"), "[DONE]"],
        [chunk("a"), chunk("b", "stop"), "[DONE]"],
        [chunk("a"), chunk("b", "length")],
        [chunk("a"), chunk("b", "length", index=1), "[DONE]"],
        [chunk("a", logprobs={"tokens": ["a"]}), chunk("b", "length"), "[DONE]"],
    ],
)
def test_everything_else_counts(other: list[Any]) -> None:
    whole = [chunk("a"), chunk("b", "length"), "[DONE]"]
    assert joined((200, other)) != joined((200, whole))


def test_the_usage_chunk_without_choices_stays() -> None:
    usage = {"id": "*", "choices": [], "usage": {"completion_tokens": 2}}
    _, events = joined((200, [chunk("a"), chunk("b", "length"), usage, "[DONE]"]))
    assert events[0]["usage"] == {"completion_tokens": 2}
