# SPDX-License-Identifier: Apache-2.0
"""What an answer's events amount to, and the row that follows from them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import UserError
from controller.runtime.load.answer import Answer, ServerTiming
from controller.runtime.load.options import Endpoint, LoadOptions, Phase, parse_phase, phase_of
from controller.runtime.load.prompts import Conversation, prompt_text, request_body, words
from controller.runtime.load.rows import Exchange, RunClock, Status, make_row, quantile
from controller.runtime.load.sse import SseEvent
from controller.simulation.traces import TraceRequest
from controller.types import Slo

pytestmark = pytest.mark.unit

SLO = Slo(ttft_ms=1000, itl_ms=50)


def event(value: object, name: str = "", comment: str = "") -> SseEvent:
    return SseEvent(name, value if isinstance(value, str) else json.dumps(value), comment)


def chat(text: str | None, reason: str | None = None, **more: Any) -> SseEvent:
    return event({"choices": [{"delta": {"content": text}, "finish_reason": reason}], **more})


def answer(*events: tuple[float, SseEvent]) -> Answer:
    made = Answer()
    for at, each in events:
        made.feed(each, at)
    made.close()
    return made


def request(**more: Any) -> TraceRequest:
    fields: dict[str, Any] = {
        "arrival_s": 1.0,
        "session_id": "s",
        "round": 0,
        "think_s": 0.0,
        "prompt_tokens": 600,
        "new_tokens": 600,
        "output_tokens": 4,
        "block_ids": (),
        "line": 3,
    }
    return TraceRequest(**(fields | more))


def test_the_first_token_is_the_first_chunk_with_text() -> None:
    made = answer((1, chat("")), (2, chat("a")), (3, chat("b", "stop")), (4, event("[DONE]")))
    assert made.token_times == [2, 3]
    assert made.text == "ab"
    assert made.error is None
    assert made.output_tokens == 2


def test_reported_usage_wins_over_chunks() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    made = answer((1, chat("ab", "length")), (2, event({"choices": [], "usage": usage})))
    assert (made.output_tokens, made.prompt_tokens, made.cached_tokens) == (5, 9, 3)


def test_reasoning_and_tool_calls_are_tokens_but_not_history() -> None:
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    call = event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "stop"}]})
    made = answer((1, thought), (2, call))
    assert made.token_times == [1, 2]
    assert made.text == ""


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([chat("a"), event({"error": {"message": "boom"}})], "boom"),
        ([chat("a"), event({"error": "boom"})], "boom"),
        ([chat("a"), event("", "error", "worker died")], "worker died"),
        ([chat("a"), event("text", "error")], "text"),
        ([chat("a"), event("{broken")], "broken chunk: {broken"),
        ([chat("a", "error"), event("[DONE]")], "finish_reason is error"),
        ([chat("a")], "the stream ended early"),
        ([], "the stream ended early"),
        ([chat("", "stop"), event("[DONE]")], "the answer has no tokens"),
    ],
)
def test_what_breaks_an_answer(events: list[SseEvent], message: str) -> None:
    assert answer(*((1, each) for each in events)).error == message


def test_a_finish_reason_replaces_a_missing_done() -> None:
    assert answer((1, chat("a", "stop"))).error is None


def test_annotations_and_empty_chunks_are_ignored() -> None:
    made = answer((1, event("[1]", "token_ids")), (2, chat("a", "stop")), (3, event("null")))
    assert made.error is None
    assert made.token_times == [2]


def test_server_timing_is_found_wherever_it_stands() -> None:
    workers = {"worker_id": {"prefill_worker_id": 2**64 - 1, "decode_worker_id": 7}}
    timing = {"timing": {"prefill_wait_time_ms": 2.5, "prefill_time_ms": 18, "ttft_ms": 20.5}}
    made = answer((1, chat("a", nvext=workers)), (2, chat("b", "stop", nvext=timing)))
    assert made.timing() == ServerTiming(2.5, 18.0, 20.5, "18446744073709551615", "7")


def test_a_single_worker_is_the_decode_worker_and_nonsense_is_unknown() -> None:
    nvext = {"worker_id": "w1", "timing": {"ttft_ms": "soon", "prefill_time_ms": None}}
    made = answer((1, chat("a", "stop", nvext=nvext)))
    assert made.timing() == ServerTiming(decode_worker_id="w1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "usage",
                    "nvext",
                    "error",
                    "finish_reason",
                    "ttft_ms",
                ]
            ),
            inner,
        )
    ),
)


@given(st.lists(JSON, max_size=4))
def test_any_chunks_are_harmless(chunks: list[object]) -> None:
    made = answer(*((1.0, event(json.dumps(chunk))) for chunk in chunks))
    assert made.timing() is not None
    assert made.output_tokens >= 0


def test_a_row_is_worked_by_hand() -> None:
    """Time scale 2: half of every wall time. Tokens at 10.6, 10.7, 10.9, 11.0 of the clock."""
    usage = {"prompt_tokens": 617, "completion_tokens": 4}
    timing = {"timing": {"prefill_wait_time_ms": 100, "prefill_time_ms": 300, "ttft_ms": 400}}
    made = answer(
        (10.6, chat("a")),
        (10.7, chat("b")),
        (10.9, chat("c")),
        (11.0, chat("d", "length", nvext=timing, usage=usage)),
    )
    exchange = Exchange(10.0, 10.002, 11.2, Status.OK, 200, None, made)
    row = make_row(
        request(), exchange, RunClock(zero=8.0, scale=2.0), SLO, request_id="r", phase="calm"
    )
    assert row.scheduled_s == pytest.approx(1.0)
    assert row.send_delay_ms == pytest.approx(1.0)
    assert row.ttft_ms == pytest.approx(299.0)
    assert row.itl_mean_ms == pytest.approx(200 / 3)
    assert row.tbt_max_ms == pytest.approx(100)
    assert row.tbt_p99_ms == pytest.approx(99)  # gaps 50, 50, 100: place 1.98
    assert row.e2e_ms == pytest.approx(599)
    assert (row.prefill_wait_ms, row.prefill_ms, row.server_ttft_ms) == (50, 150, 200)
    assert row.handover_ms == pytest.approx(99)
    assert (row.prompt_tokens, row.prompt_tokens_intended) == (617, 600)
    assert (row.output_tokens, row.status, row.phase) == (4, Status.OK, "calm")
    assert not row.attained  # ITL 66.7 > 50


def test_a_request_that_was_never_sent_has_no_times() -> None:
    row = make_row(request(), Exchange(), RunClock(0, 1), SLO, request_id="r", phase="all")
    assert row.status is Status.NEVER_SENT
    times = (row.scheduled_s, row.sent_s, row.ttft_ms, row.send_delay_ms, row.e2e_ms)
    assert times == (None,) * 5
    assert row.output_tokens is None
    assert not row.attained


@pytest.mark.parametrize(
    ("ttft_s", "gap_s", "tokens", "attained"),
    [
        (1.0, 0.03125, 2, True),
        (1.001, 0.01, 2, False),
        (0.5, 0.03126, 2, False),
        (0.5, 9.0, 1, True),
    ],
)
def test_attainment_at_the_limits(ttft_s: float, gap_s: float, tokens: int, attained: bool) -> None:
    made = Answer()
    for number in range(tokens):
        made.feed(chat("a", "stop"), ttft_s + number * gap_s)
    exchange = Exchange(0.0, 0.0, 99.0, Status.OK, 200, None, made)
    slo = Slo(ttft_ms=1000, itl_ms=31.25)  # exact in binary
    row = make_row(request(), exchange, RunClock(0, 1), slo, request_id="r", phase="all")
    assert row.attained is attained


def test_an_error_text_becomes_one_short_line() -> None:
    exchange = Exchange(0, 0, 1, Status.ERROR, 200, "a\n b\t" + "x" * 500, Answer())
    row = make_row(request(), exchange, RunClock(0, 1), SLO, request_id="r", phase="all")
    assert row.error is not None
    assert row.error.startswith("a b xxx")
    assert len(row.error) < 200


def test_quantiles_interpolate_and_know_nothing_of_nothing() -> None:
    assert quantile([], 0.5) is None
    assert quantile([4.0], 0.99) == 4.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)


def test_prompts_share_text_exactly_where_they_share_blocks() -> None:
    one = prompt_text(request(new_tokens=1200, block_ids=(5, 6, 7)), 0, 1.0)
    two = prompt_text(request(new_tokens=1300, block_ids=(5, 6, 8)), 0, 1.0)
    assert (len(one), len(two)) == (1200, 1300)
    assert one[:1024] == two[:1024]
    assert one[1024:1100] != two[1024:1100]
    assert prompt_text(request(new_tokens=1200, block_ids=(5, 6, 7)), 1, 1.0)[:512] != one[:512]


def test_prompts_without_blocks_belong_to_their_round_alone() -> None:
    texts = {
        prompt_text(request(session_id=session, round=turn), 0, 4.0)
        for session in ("a", "b")
        for turn in (0, 1)
    }
    assert len(texts) == 4
    assert {len(text) for text in texts} == {2400}


@given(st.text(), st.integers(min_value=1, max_value=2000))
def test_words_are_lower_case_letters_and_blanks(key: str, chars: int) -> None:
    text = words(key, chars)
    assert len(text) == chars
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert text[0] != " "
    assert words(key, chars + 5).startswith(text)


def test_conversations_grow_by_real_answers() -> None:
    talk = Conversation(Endpoint.CHAT)
    first = talk.ask("hi")
    talk.answered("yo")
    assert first == {"messages": [{"role": "user", "content": "hi"}]}
    assert [m["content"] for m in talk.ask("so")["messages"]] == ["hi", "yo", "so"]
    text = Conversation(Endpoint.COMPLETIONS)
    text.ask("hi ")
    text.answered("yo ")
    assert text.ask("so") == {"prompt": "hi yo so"}


def test_plain_bodies_have_standard_fields_only() -> None:
    plain = request_body(request(), {"prompt": "x"}, "m", ignore_eos=True, plain=True)
    assert set(plain) == {"model", "prompt", "max_tokens", "stream", "stream_options"}
    full = request_body(request(), {"prompt": "x"}, "m", ignore_eos=True, plain=False)
    assert (full["ignore_eos"], full["min_tokens"]) == (True, 4)
    assert full["nvext"] == {"extra_fields": ["timing", "worker_id"]}
    free = request_body(request(), {"prompt": "x"}, "m", ignore_eos=False, plain=False)
    assert "ignore_eos" not in free
    assert "min_tokens" not in free


def test_phases_label_arrivals() -> None:
    phases = (parse_phase("calm=0:25"), parse_phase("burst=25:"))
    assert phases[0] == Phase("calm", 0, 25)
    assert [phase_of(at, phases) for at in (0, 24.9, 25, 1e9)] == ["calm", "calm", "burst", "burst"]
    assert phase_of(30, phases[:1]) == "other"
    assert phase_of(30, ()) == "all"


@pytest.mark.parametrize("text", ["calm", "calm=5", "calm=5:5", "calm=x:y", "=0:1", "a=nan:1"])
def test_a_broken_phase_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="give name=START:END"):
        parse_phase(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:8000"},
        {"url": "http://"},
        {"time_scale": 0.0},
        {"chars_per_token": float("nan")},
        {"timeout_s": -1.0},
        {"time_limit_s": float("inf")},
        {"slo": Slo(ttft_ms=0, itl_ms=1)},
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        LoadOptions(**({"url": "http://h:1", "slo": SLO} | wrong))


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_may_end_in_v1(url: str) -> None:
    assert LoadOptions(url=url, slo=SLO).base_url == "http://h:1"
