# SPDX-License-Identifier: Apache-2.0
"""Our router in the test process, over the workers of a live deployment.

The same RouterCore, ports and StreamRelay as in a router process, so that a test can stop a
request at an exact moment, count the legs, and switch a rule off.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from random import Random
from typing import Any

from conformance_http import overwrite_prefill_blocks
from conformance_live import Live
from prometheus_client import CollectorRegistry

from controller.routing.decision_record import RouterRow
from controller.routing.inflight import InFlightBound
from controller.routing.registry import PLACEMENTS
from controller.runtime.clock import Clock
from controller.runtime.resources import read_profile
from controller.runtime.router.binding import Binding, DecodeLoads
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_port import DynamoDecodePort
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.handover import KvLease, is_handover, prefill_request
from controller.runtime.router.hints import Objectives
from controller.runtime.router.ports import DynamoPrefillPort
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.streams import StreamRelay, StreamSettings


class NoIndex:
    """No prefix index: nothing counts as cached."""

    def ensure(self) -> None: ...

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        return {}


class WatchedPort:
    """A prefill port that tells what passes through it."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.sent: list[dict[str, Any]] = []
        self.released: list[dict[str, Any]] = []
        self.on_sent: Callable[[], None] = _nothing
        self.on_answer: Callable[[], None] = _nothing
        """Called in the instant in which a prefill worker's chunk arrives."""

    def live(self) -> tuple[int, ...]:
        return self._port.live()

    def rank(self, unit_id: int) -> int | None:
        return self._port.rank(unit_id)

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        return await self._port.cached_tokens(token_ids)

    def open(self, worker_id: int, request: dict[str, Any], context: Any) -> Any:
        self.sent.append(request)
        self.on_sent()
        return _WatchedStream(self._port.open(worker_id, request, context), self)

    async def release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        self.released.append(chunk)
        await self._port.release(request, chunk)


class _WatchedStream:
    def __init__(self, stream: Any, port: WatchedPort) -> None:
        self._stream, self._port = stream, port

    def stop(self) -> None:
        self._stream.stop()

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        async with contextlib.aclosing(self._stream.chunks()) as chunks:
            async for chunk in chunks:
                self._port.on_answer()
                yield chunk


class Router:
    """The core alone (`prefill`), as a broker uses it, and the relay around it (`serve`)."""

    def __init__(
        self, live: Live, policy: str = "always_remote", max_num_batched_tokens: int = 2048
    ) -> None:
        config = live.deployment.config
        clock = Clock()
        costs = read_profile(config.router.profile).cost_model()
        metrics = RouterMetrics(CollectorRegistry(), policy)
        params, slo = config.router.params(), config.slo.value()
        row = RouterRow(
            "r", 0, 1, config.model, "relay", policy, "", slo.ttft_ms, slo.itl_ms, 1.0, 0.0
        )
        log = DecisionLog(None, row)
        self.port = WatchedPort(
            DynamoPrefillPort(live.prefill_client, live.decode_client, NoIndex())  # type: ignore[arg-type]
        )
        self.core = RouterCore(
            PLACEMENTS[policy](costs, slo, params, Random(0)),
            costs,
            Objectives(slo),
            CoreSettings(
                max_wait_s=live.kind.timeout_s,
                prefill_timeout_s=live.kind.timeout_s,
                sticky_sessions=False,
            ),
            self.port,
            PrefillQueues(InFlightBound(max_num_batched_tokens), window_s=10.0),
            DecodeState(10.0),
            clock,
            metrics,
            log,
        )
        loads = DecodeLoads()
        self.relay = StreamRelay(
            self.core,
            self.port,
            DynamoDecodePort(live.decode_client),
            Binding(loads, Random(0)),
            loads,
            StreamSettings(
                migration_limit=0,
                lease=KvLease(config.router.kv_lease_s, config.router.kv_lease_margin_s),
            ),
            clock,
            metrics,
            log,
        )

    async def prefill(self, request: dict[str, Any], context: Any) -> list[dict[str, Any]]:
        """What a broker answers the frontend; a client that has left gets a release instead."""
        chunks: list[dict[str, Any]] = []
        try:
            leg = self.core.prefill(prefill_request(request), context.id(), context)
            async with contextlib.aclosing(leg) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
            return chunks
        except asyncio.CancelledError:
            for chunk in filter(is_handover, chunks):
                await self.port.release(request, chunk)
            raise

    async def serve(self, request: dict[str, Any], context: Any) -> list[dict[str, Any]]:
        """What a relay streams to the client."""
        async with contextlib.aclosing(self.relay.serve(request, context)) as chunks:
            return [chunk async for chunk in chunks]


def _nothing() -> None: ...


class Freeze:
    """Freezes this process once, at the instant of a prefill's answer, for longer than a lease.

    Meanwhile the prefill worker, alive, reuses every block it has: what a suspended router (a
    paused VM, a long stop of the world) finds when it goes on.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._done = False

    def __call__(self) -> None:
        if self._done:
            return
        self._done = True
        time.sleep(self._live.kind.lease_s + 0.5)
        overwrite_prefill_blocks(self._live)
