# SPDX-License-Identifier: Apache-2.0
"""The open-loop run against a server on loopback that behaves as badly as a test wishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from aiohttp import web
from load_support import (
    FakeServer,
    Handler,
    answer_bytes,
    never,
    sse,
    status,
    streaming,
    together,
    token,
)

from controller.errors import UserError
from controller.runtime.load import (
    Endpoint,
    LoadOptions,
    LoadResult,
    Phase,
    Progress,
    RequestRow,
    Status,
    run_load,
    summarize,
)
from controller.simulation.trace_formats import parse_trace
from controller.simulation.traces import Trace
from controller.types import Slo

pytestmark = pytest.mark.integration

SLO = Slo(ttft_ms=1000, itl_ms=500)
T = TypeVar("T")


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def trace(*rows: tuple[int, list[int]], tokens: int = 3) -> Trace:
    """Sessions as (arrival ms, [think ms of each later round])."""
    lines = []
    for number, (at_ms, thinks) in enumerate(rows):
        common = f'"session_id":"s{number}","input_length":50,"output_length":{tokens}'
        lines.append(f'{{{common},"timestamp":{at_ms}}}')
        lines += [f'{{{common},"delay":{think}}}' for think in thinks]
    return parse_trace("\n".join(lines), "t.jsonl")


def options(server: FakeServer, **more: Any) -> LoadOptions:
    return LoadOptions(**({"url": server.url, "slo": SLO} | more))


def replay(
    handler: Handler, what: Trace, **more: Any
) -> tuple[LoadResult, FakeServer, list[Progress]]:
    seen: list[Progress] = []

    async def main() -> tuple[LoadResult, FakeServer, list[Progress]]:
        async with FakeServer(handler) as server:
            return await run_load(options(server, **more), what, seen.append), server, seen

    return wait(main())


def in_time(value: float | None, least: float) -> bool:
    """At least what was slept, with room above for a busy machine."""
    return value is not None and least <= value < least + 1000


def only(result: LoadResult) -> RequestRow:
    assert len(result.rows) == 1
    return result.rows[0]


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_a_served_session_is_recorded_and_sent_as_asked(endpoint: Endpoint) -> None:
    timing = {"timing": {"prefill_wait_time_ms": 0.5, "prefill_time_ms": 0.25}}
    result, server, seen = replay(
        streaming(nvext=timing), trace((0, [10])), endpoint=endpoint, phases=(Phase("p", 0, 1),)
    )
    assert [row.status for row in result.rows] == [Status.OK, Status.OK]
    assert result.model == "tiny"
    assert not result.interrupted
    assert not result.time_limit_reached
    first, second = server.received
    assert first.path == endpoint.path
    assert first.body["stream"] is True
    assert first.body["model"] == "tiny"
    assert first.body["stream_options"] == {"include_usage": True}
    assert first.headers["x-dynamo-session-id"] == "s0"
    assert first.headers["x-request-id"] == result.rows[0].request_id
    if endpoint is Endpoint.CHAT:
        talk = second.body["messages"]
        assert [message["role"] for message in talk] == ["user", "assistant", "user"]
        assert talk[0] == first.body["messages"][0]
        assert talk[1]["content"] == "t0 t1 t2 "
        assert len(talk[2]["content"]) == 50
    else:
        assert second.body["prompt"].startswith(first.body["prompt"] + "t0 t1 t2 ")
    row = result.rows[1]
    assert row.phase == "p"
    assert (row.round, row.http_status, row.output_tokens) == (1, 200, 3)
    assert (row.prefill_wait_ms, row.prefill_ms) == (0.5, 0.25)
    assert row.handover_ms == pytest.approx((row.ttft_ms or 0) - 0.75)
    assert row.attained
    assert seen[-1].finished
    assert (seen[-1].ok, seen[-1].failed, seen[-1].intended) == (2, 0, 2)


def bytewise(events: list[bytes]) -> list[bytes]:
    whole = b": hello\n\n" + b"".join(events)
    return [whole[n : n + 3] for n in range(0, len(whole), 3)]


def lumped(events: list[bytes]) -> list[bytes]:
    return [b"".join(events)]


@pytest.mark.parametrize("cut", [bytewise, lumped])
def test_chunks_may_be_split_anywhere(cut: Any) -> None:
    row = only(replay(streaming(cut=cut), trace((0, [])))[0])
    assert (row.status, row.output_tokens) == (Status.OK, 3)
    assert row.prompt_tokens > 50


def test_without_usage_chunks_are_counted_and_the_prompt_is_as_intended() -> None:
    row = only(replay(streaming(usage=False), trace((0, []), tokens=5))[0])
    assert (row.status, row.output_tokens, row.prompt_tokens) == (Status.OK, 5, 50)


def test_ttft_itl_and_gaps_follow_the_stream() -> None:
    row = only(replay(streaming(first_s=0.1, gap_s=0.04), trace((0, []), tokens=5))[0])
    # The role chunk comes first and is no token.
    assert in_time(row.ttft_ms, 139)
    assert in_time(row.itl_mean_ms, 39)
    assert row.tbt_max_ms is not None
    assert row.tbt_max_ms >= (row.tbt_p99_ms or 0) >= 39
    assert row.e2e_ms is not None
    assert row.e2e_ms > row.ttft_ms + 4 * 39


def test_time_scale_stretches_the_run_and_shrinks_the_figures() -> None:
    result, server, _ = replay(streaming(first_s=0.2), trace((0, []), (100, [100])), time_scale=4.0)
    gaps = [server.received[n].at - server.received[0].at for n in (1, 2)]
    assert in_time(1000 * gaps[0], 350)
    assert in_time(1000 * gaps[1], 950)  # arrival, answer, think time: 0.4 + 0.2 + 0.4 s
    assert result.rows[1].scheduled_s == pytest.approx(0.1)
    assert in_time(result.rows[1].ttft_ms, 50)


def test_a_later_round_waits_for_its_predecessor_and_the_think_time() -> None:
    result, server, _ = replay(streaming(first_s=0.2), trace((0, [100])))
    assert in_time(1000 * (server.received[1].at - server.received[0].at), 290)
    first, second = result.rows
    assert first.e2e_ms is not None
    assert second.scheduled_s == pytest.approx((first.sent_s or 0) + first.e2e_ms / 1000 + 0.1)
    assert in_time(second.send_delay_ms, 0)


def test_open_loop_keeps_sending_while_the_server_is_slow() -> None:
    # A client that waited for answers would time out: nobody is answered before the last comes.
    what = trace(*((5 * n, []) for n in range(20)))
    result, server, _ = replay(together(20), what, timeout_s=15)
    assert [row.status for row in result.rows] == [Status.OK] * 20
    assert server.received[-1].at - server.received[0].at > 0.08


@pytest.mark.parametrize("code", [500, 503])
def test_refusals_are_recorded_and_end_the_session(code: int) -> None:
    result, server, _ = replay(status(code, {"error": {"message": "too busy"}}), trace((0, [0, 0])))
    first, *later = result.rows
    assert (first.status, first.http_status, first.error) == (Status.HTTP_ERROR, code, "too busy")
    assert not first.attained
    assert [row.status for row in later] == [Status.NEVER_SENT] * 2
    assert len(server.received) == 1
    assert later[0].scheduled_s is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("plain words", "plain words"),
        ({"message": "Model not found"}, "Model not found"),
        ("", None),
    ],
)
def test_error_bodies_come_in_all_shapes(body: Any, text: str | None) -> None:
    assert (only(replay(status(404, body), trace((0, [])))[0]).error or None) == text


def broken_stream(*pieces: bytes, drop: bool = False) -> Handler:
    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if drop and request.transport is not None:
            await asyncio.sleep(0.02)
            request.transport.abort()
        return response

    return handle


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (broken_stream(token("a"), sse({"error": {"message": "boom"}})), "boom"),
        (broken_stream(token("a"), b"event: error\n: worker died\n\n"), "worker died"),
        (broken_stream(token("a"), b"data: {oops\n\n"), "broken chunk"),
        (broken_stream(token("a")), "the stream ended early"),
        (broken_stream(sse("[DONE]")), "no tokens"),
        (broken_stream(token("a"), drop=True), ""),
        (status(200, {"choices": []}), "not an event stream"),
    ],
)
def test_streams_that_break_are_errors(handler: Handler, message: str) -> None:
    result, _, _ = replay(handler, trace((0, [0])))
    row = result.rows[0]
    assert row.status is Status.ERROR
    assert message in (row.error or "")
    assert row.e2e_ms is not None
    assert result.rows[1].status is Status.NEVER_SENT


def test_a_server_that_never_answers_times_out() -> None:
    result, _, _ = replay(never, trace((0, [0])), timeout_s=0.15, time_scale=2.0)
    row = result.rows[0]
    assert row.status is Status.TIMEOUT
    assert in_time(row.e2e_ms, 149)
    assert row.ttft_ms is None
    assert result.rows[1].status is Status.NEVER_SENT


def test_a_stream_held_open_after_done_is_finished_all_the_same() -> None:
    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(answer_bytes(body)))
        await asyncio.sleep(3600)
        return response

    row = only(replay(handle, trace((0, [])))[0])
    assert row.status is Status.OK
    assert row.e2e_ms is not None
    assert row.e2e_ms < 2000


def test_the_time_limit_cuts_and_counts_everything_unfinished() -> None:
    async def handle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        slow = request.headers["x-dynamo-session-id"] == "s1"
        return await (streaming(gap_s=60) if slow else streaming())(request, body)

    what = trace((0, [50_000]), (10, [0]), (60_000, [0]), tokens=2)
    result, _, seen = replay(handle, what, time_limit_s=0.3, endpoint=Endpoint.COMPLETIONS)
    assert result.time_limit_reached
    assert [row.status.value for row in result.rows] == [
        "ok",
        "never_sent",
        "unfinished",
        "never_sent",
        "never_sent",
        "never_sent",
    ]
    cut = result.rows[2]
    assert cut.ttft_ms is not None  # its first token came
    assert cut.output_tokens == 1
    assert not cut.attained
    # A first round is due by the trace; a later one only after its predecessor.
    assert result.rows[4].scheduled_s == pytest.approx(60)
    assert result.rows[5].scheduled_s is None
    total = summarize(result.rows, SLO).total
    assert (total.intended, total.ok, total.unfinished, total.never_sent) == (6, 1, 1, 4)
    assert total.attainment == pytest.approx(1 / 6)
    assert (seen[-1].failed, seen[-1].running) == (0, 0)


def test_stop_ends_the_run_with_all_rows() -> None:
    async def main() -> LoadResult:
        stop = asyncio.Event()
        async with FakeServer(never) as server:
            asyncio.get_running_loop().call_later(0.2, stop.set)
            return await run_load(options(server), trace((0, [0]), (60_000, [])), stop=stop)

    result = wait(main())
    assert result.interrupted
    assert [row.status.value for row in result.rows] == ["unfinished", "never_sent", "never_sent"]


def test_cancellation_is_passed_on_and_leaves_no_task() -> None:
    async def main() -> int:
        async with FakeServer(never) as server:
            run = asyncio.ensure_future(run_load(options(server), trace((0, []), (9_000, []))))
            await asyncio.sleep(0.2)
            before = len(asyncio.all_tasks())
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await asyncio.sleep(0.05)
            return before - len(asyncio.all_tasks())

    assert wait(main()) >= 4


def test_hundreds_of_streams_run_at_once() -> None:
    what = trace(*((n, []) for n in range(500)), tokens=1)
    result, _, _ = replay(together(500), what, timeout_s=25)
    assert all(row.status is Status.OK for row in result.rows)


def test_plain_requests_carry_standard_fields_only() -> None:
    _, server, _ = replay(streaming(), trace((0, [])), plain=True)
    assert set(server.received[0].body) == {
        "model",
        "messages",
        "max_tokens",
        "stream",
        "stream_options",
    }


def test_further_headers_are_sent() -> None:
    _, server, _ = replay(streaming(), trace((0, [])), headers=(("authorization", "Bearer x"),))
    assert server.received[0].headers["authorization"] == "Bearer x"


def test_a_server_without_models_is_refused_unless_one_is_named() -> None:
    async def main(model: str | None) -> LoadResult:
        async with FakeServer(streaming(), models=()) as server:
            return await run_load(options(server, model=model), trace((0, [])))

    with pytest.raises(UserError, match="lists no model; wait until the workers are ready"):
        wait(main(None))
    assert wait(main("mine")).model == "mine"


def test_an_unreachable_server_is_refused_before_the_start() -> None:
    async def main() -> None:
        await run_load(LoadOptions(url="http://127.0.0.1:9", slo=SLO), trace((0, [])))

    with pytest.raises(UserError, match=r"cannot be reached .*; is the server up"):
        wait(main())


def test_a_server_that_dies_during_the_run_is_no_crash() -> None:
    async def main() -> LoadResult:
        async with FakeServer(streaming()) as server:
            run = asyncio.ensure_future(run_load(options(server), trace((0, []), (700, []))))
            await asyncio.sleep(0.35)
        return await run

    assert [row.status for row in wait(main()).rows] == [Status.OK, Status.ERROR]
