# SPDX-License-Identifier: Apache-2.0
"""One emulated engine on the wall clock: the step loop, its requests and its KV hand-overs.

Owns: when steps run, who gets which token, pulls and leases over the side channel. Does not
own: what a step contains or takes (controller.engine), Dynamo's wire formats (protocol.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass
from typing import Any

from controller.costs.model import CostModel
from controller.engine import (
    CacheEvent,
    Engine,
    EngineLoad,
    EngineRequest,
    EngineSpec,
    Output,
    Pull,
    Step,
)
from controller.runtime.clock import Clock
from controller.runtime.emulated.content import damage
from controller.runtime.emulated.side_channel import Peer, SideChannelClient, SideChannelError
from controller.runtime.emulated.slowdown import SlowableCosts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where a decode leg pulls its KV from (the hand-over handle of a finished prefill)."""

    peer: Peer
    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, for ForwardPassMetrics; the load is that at its end."""

    step: Step
    load: EngineLoad


class _Live:
    """A request inside this worker."""

    __slots__ = ("expected", "first_token", "kv_damage", "outputs", "source")

    def __init__(self, expected: tuple[int, ...], source: KvSource | None) -> None:
        self.outputs: asyncio.Queue[Output | None] = asyncio.Queue()
        self.first_token = asyncio.Event()
        self.expected = expected
        self.source = source
        self.kv_damage = 0


class EmulatedWorker:
    """Runs one engine. `run()` is its life; `generate()` streams one request's outputs."""

    def __init__(
        self,
        engine_id: str,
        spec: EngineSpec,
        costs: CostModel,
        clock: Clock,
        channel: SideChannelClient,
        on_step: Callable[[StepRecord], None] = lambda record: None,
        on_cache: Callable[[list[CacheEvent]], None] = lambda events: None,
    ) -> None:
        self.engine_id = engine_id
        self.max_lag_s = 0.0
        self._costs = SlowableCosts(costs)
        self._engine = Engine(spec, self._costs)
        self._clock = clock
        self._channel = channel
        self._on_step = on_step
        self._on_cache = on_cache
        self._live: dict[str, _Live] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> EngineLoad:
        """What the engine holds right now."""
        return self._engine.load()

    async def run(self) -> None:
        """The step loop, until cancelled.

        While there is work the next step starts exactly where the last one ended, however late
        the host woke us: lateness is reported (`max_lag_s`), never accumulated.
        """
        ready_s = self._clock.now()
        while True:
            self._engine.expire(ready_s)
            step = self._engine.begin_step(ready_s)
            self._start_pulls(ready_s)
            if step is None:
                ready_s = await self._idle()
                continue
            end_s = step.start_s + step.duration_s
            self.max_lag_s = max(self.max_lag_s, await self._clock.sleep_until(end_s))
            self._deliver(self._engine.finish_step(end_s))
            self._publish(step)
            ready_s = end_s

    async def generate(
        self, request: EngineRequest, source: KvSource | None = None
    ) -> AsyncGenerator[Output, None]:
        """Outputs of one request as they come. Closing the iterator cancels the request."""
        live = _Live(request.contents, source)
        self._engine.add(request, self._clock.now())
        self._live[request.request_id] = live
        if source is not None:
            self._spawn(self._tell_source(source, "renew"))
        self._wake.set()
        try:
            while True:
                output = await live.outputs.get()
                if output is None:
                    return
                yield output
                if output.finish is not None:
                    return
        finally:
            self._forget(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request early. One that has just finished still delivers its last output:

        a prefill's answer is the only handle to its pinned blocks, and a real engine that has
        finished a request delivers it too, whatever is aborted meanwhile.
        """
        live = self._live.get(request_id)
        if live is not None and self._cancel(request_id, live):
            live.outputs.put_nowait(None)

    async def first_token(self, request_id: str) -> None:
        """Wait until the request has had its first output (or has gone)."""
        live = self._live.get(request_id)
        if live is not None:
            await live.first_token.wait()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """One side channel message: renew, read or release pinned blocks, tell the load, slow."""
        now_s = self._clock.now()
        request_id, op = str(message.get("request_id")), message.get("op")
        if op == "renew":
            return {"ok": self._engine.renew(request_id, now_s)}
        if op == "read":
            return {"ok": True, "contents": self._engine.block_contents(message["block_ids"])}
        if op == "release":
            released = self._engine.release(request_id, now_s)
            self._wake.set()
            return {"ok": released}
        if op == "load":
            return {"ok": True, "load": asdict(self._engine.load())}
        if op == "slow":
            refused = self._costs.slow(message.get("factor"))
            return {"ok": refused is None, "error": refused}
        return {"ok": False, "error": f"unknown op {op!r}"}

    def kv_damage(self, request_id: str) -> int:
        """How wrong the KV is that this request pulled; 0 when it is right."""
        live = self._live.get(request_id)
        return live.kv_damage if live else 0

    def pinned_blocks(self, request_id: str) -> tuple[int, ...]:
        """Blocks that wait for the decode leg of a finished prefill."""
        return self._engine.pinned_blocks(request_id) or ()

    async def _idle(self) -> float:
        expiry_s = self._engine.next_wakeup_s()
        timeout = None
        if expiry_s is not None:
            timeout = max(0.0, self._clock.wall(expiry_s - self._clock.now()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)
        self._wake.clear()
        return self._clock.now()

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is not None:
                live.outputs.put_nowait(output)
                live.first_token.set()

    def _publish(self, step: Step) -> None:
        self._on_step(StepRecord(step, self._engine.load()))
        events = self._engine.take_cache_events()
        if events:
            self._on_cache(events)

    def _forget(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:
            return
        live.first_token.set()
        self._cancel(request_id, live)

    def _cancel(self, request_id: str, live: _Live) -> bool:
        cancelled = self._engine.cancel(request_id, self._clock.now())
        if cancelled and live.source is not None:
            # A leg that ends before its pull must free the other side (docs/handover.md).
            self._spawn(self._tell_source(live.source, "release"))
        self._wake.set()
        return cancelled

    def _start_pulls(self, now_s: float) -> None:
        for pull in self._engine.take_pulls():
            live = self._live.get(pull.request_id)
            if live is not None and live.source is not None:
                self._spawn(self._pull(pull, live.source, now_s))

    async def _pull(self, pull: Pull, source: KvSource, start_s: float) -> None:
        contents: list[int] | None = []
        try:
            if pull.blocks:
                end = pull.skip_blocks + pull.blocks
                block_ids = source.block_ids[pull.skip_blocks : end]
                answer = await self._call(source, "read", block_ids=block_ids)
                contents = list(answer["contents"])
                self._note_damage(pull, contents)
                await self._clock.sleep_until(start_s + pull.duration_s)
            await self._call(source, "release")
        except SideChannelError as error:
            logger.warning("kv pull failed request=%s error=%s", pull.request_id, error)
            contents = None
        self._deliver(self._engine.finish_pull(pull.request_id, contents, self._clock.now()))
        self._wake.set()

    def _note_damage(self, pull: Pull, contents: list[int]) -> None:
        live = self._live.get(pull.request_id)
        if live is not None:
            expected = live.expected[pull.skip_blocks : pull.skip_blocks + pull.blocks]
            live.kv_damage = damage(expected, contents)

    async def _tell_source(self, source: KvSource, op: str) -> None:
        try:
            await self._call(source, op)
        except SideChannelError as error:
            logger.warning("kv %s failed request=%s error=%s", op, source.request_id, error)

    async def _call(self, source: KvSource, op: str, **fields: Any) -> dict[str, Any]:
        message = {"op": op, "engine_id": source.engine_id, "request_id": source.request_id}
        return await self._channel.call(source.peer, message | fields)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
