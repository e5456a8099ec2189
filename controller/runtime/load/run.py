# SPDX-License-Identifier: Apache-2.0
"""Replays a trace in open loop: a session begins at its time, whatever the server does.

A later round is sent when its predecessor has answered and the think time has passed; after a
failed predecessor it is never sent, and counted as such. Every intended request gets a row.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from controller.runtime.load.client import exchange_stream, find_model, open_http
from controller.runtime.load.options import LoadOptions, Progress, phase_of
from controller.runtime.load.prompts import Conversation, prompt_text, request_body
from controller.runtime.load.rows import Exchange, RequestRow, RunClock, Status, make_row
from controller.simulation.traces import Session, Trace, TraceRequest, arrival_s

_PROGRESS_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class LoadResult:
    """A run that has ended. `rows` follow the trace, session after session."""

    rows: list[RequestRow]
    model: str
    duration_s: float
    interrupted: bool
    time_limit_reached: bool


async def run_load(
    options: LoadOptions,
    trace: Trace,
    progress: Callable[[Progress], None] | None = None,
    *,
    stop: asyncio.Event | None = None,
) -> LoadResult:
    """Replay `trace`; `stop` ends the run early with all rows.

    UserError only when the server cannot be reached at the start. Cancelled, it cancels all
    requests and raises.
    """
    _raise_open_files_limit()
    async with open_http(options) as http:
        model = await find_model(http, options)
        run = _Run(options, trace, http, model)
        ended = await run.until_end(progress, stop or asyncio.Event())
        return LoadResult(
            rows=run.rows(),
            model=model,
            duration_s=run.elapsed_s,
            interrupted=ended == "stop",
            time_limit_reached=ended == "limit",
        )


class _Run:
    def __init__(
        self, options: LoadOptions, trace: Trace, http: aiohttp.ClientSession, model: str
    ) -> None:
        self._options = options
        self._trace = trace
        self._http = http
        self._model = model
        # Not the loop's clock: uvloop's is cached and rounded to milliseconds.
        self._now = time.monotonic
        self._url = options.base_url + options.endpoint.path
        self._run_id = uuid.uuid4().hex[:8]
        self._exchanges = {request.line: Exchange() for request in trace.requests()}
        self._clock = RunClock(zero=self._now(), scale=options.time_scale)
        self.elapsed_s = 0.0

    async def until_end(
        self, progress: Callable[[Progress], None] | None, stop: asyncio.Event
    ) -> str:
        """Run to "all" answered, "limit" or "stop"; nothing of it runs on afterwards."""
        limit_s = self._options.time_limit_s
        sessions = [asyncio.ensure_future(self._session(each)) for each in self._trace.sessions]
        # The tasks start at the next await: all of them on a clock that starts here.
        self._clock = RunClock(zero=self._now(), scale=self._options.time_scale)
        everything = asyncio.ensure_future(_all(sessions))
        stopped = asyncio.ensure_future(stop.wait())
        tasks = (*sessions, everything, stopped, asyncio.ensure_future(self._report(progress)))
        try:
            await asyncio.wait(
                {everything, stopped},
                timeout=None if limit_s is None else limit_s * self._options.time_scale,
                return_when=asyncio.FIRST_COMPLETED,
            )
            ended = "all" if everything.done() else "stop" if stopped.done() else "limit"
        finally:
            self.elapsed_s = self._clock.seconds(self._now()) or 0.0
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            # A session handles all that a server can do; anything else is a bug to be seen.
            if isinstance(result, Exception):
                raise result
        if progress is not None:
            progress(self._progress(finished=True))
        return ended

    async def _session(self, rounds: Session) -> None:
        conversation = Conversation(self._options.endpoint)
        due = self._clock.wall(arrival_s(rounds))
        for request in rounds:
            exchange = self._exchanges[request.line]
            due += request.think_s * self._options.time_scale
            exchange.due_at = due
            await asyncio.sleep(due - self._now())
            await self._send(request, exchange, conversation)
            if exchange.status is not Status.OK or exchange.answer is None:
                return
            conversation.answered(exchange.answer.text)
            due = exchange.ended_at or self._now()

    async def _send(
        self, request: TraceRequest, exchange: Exchange, conversation: Conversation
    ) -> None:
        options = self._options
        text = prompt_text(request, options.seed, options.chars_per_token)
        body = request_body(
            request,
            conversation.ask(text),
            self._model,
            ignore_eos=options.ignore_eos,
            plain=options.plain,
        )
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "x-request-id": self._request_id(request),
            "x-dynamo-session-id": request.session_id,
        }
        await exchange_stream(
            self._http, self._url, exchange, body=body, headers=headers, clock=self._now
        )

    def _request_id(self, request: TraceRequest) -> str:
        # The line is unique within a trace, the run id within a server's logs.
        return f"{self._run_id}-{request.line}"

    def rows(self) -> list[RequestRow]:
        """One row per intended request."""
        return [
            make_row(
                request,
                self._exchanges[request.line],
                self._clock,
                self._options.slo,
                request_id=self._request_id(request),
                phase=phase_of(arrival_s(session), self._options.phases),
            )
            for session in self._trace.sessions
            for request in session
        ]

    async def _report(self, progress: Callable[[Progress], None] | None) -> None:
        while progress is not None:
            progress(self._progress(finished=False))
            await asyncio.sleep(_PROGRESS_S)

    def _progress(self, *, finished: bool) -> Progress:
        exchanges = self._exchanges.values()
        sent = [each for each in exchanges if each.sent_at is not None]
        late = (self._clock.span_ms(each.due_at, each.sent_at) or 0.0 for each in sent)
        ended = [each for each in sent if each.ended_at is not None]
        ok = sum(each.status is Status.OK for each in ended)
        cut = sum(each.status is Status.UNFINISHED for each in ended)
        return Progress(
            elapsed_s=self._clock.seconds(self._now()) or 0.0,
            intended=len(exchanges),
            sent=len(sent),
            running=len(sent) - len(ended),
            ok=ok,
            failed=len(ended) - ok - cut,
            late_max_ms=max(late, default=0.0),
            finished=finished,
        )


def run_until_signal(
    options: LoadOptions, trace: Trace, progress: Callable[[Progress], None] | None = None
) -> LoadResult:
    """`run_load` in its own event loop; the first SIGINT or SIGTERM ends it with all rows."""

    async def main() -> LoadResult:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in _SIGNALS:
                # A second one must not wait for anything.
                loop.remove_signal_handler(number)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        return await run_load(options, trace, progress, stop=stop)

    return asyncio.run(main())


async def _all(tasks: Sequence[asyncio.Future[None]]) -> None:
    await asyncio.gather(*tasks)


def _raise_open_files_limit() -> None:
    """A connection is an open file; the usual soft limit of 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
