# SPDX-License-Identifier: Apache-2.0
"""The relay's own classes over workers without processes: what many sessions leave in memory."""

from __future__ import annotations

import asyncio
import gc
import resource
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from controller.config import RouterConfig
from controller.routing.decision_record import RouterRow
from controller.routing.inflight import InFlightBound
from controller.routing.registry import PLACEMENTS
from controller.runtime.clock import Clock
from controller.runtime.resources import read_profile
from controller.runtime.router.binding import Binding, DecodeLoads
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.handover import KvLease
from controller.runtime.router.hints import Objectives
from controller.runtime.router.life import StreamSettings
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.streams import StreamRelay
from controller.types import Slo

PREFILLS, DECODES = (1, 2, 3), (101, 102)
AT_ONCE = 64
HANDOVER = {"token_ids": [7], "disaggregated_params": {"kv_transfer_params": {"handle": 1}}}


class Stream:
    """Chunks that somebody has thought up."""

    def __init__(self, chunks: list[dict[str, Any]]) -> None:
        self._chunks = chunks

    def stop(self) -> None: ...

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        for chunk in self._chunks:
            await asyncio.sleep(0)
            yield chunk


class Prefills:
    """Prefill workers that answer at once."""

    def live(self) -> tuple[int, ...]:
        return PREFILLS

    def rank(self, unit_id: int) -> int | None:
        return None

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        return {}

    async def stock_choice(self, token_ids: list[int], request_id: str) -> int | None:
        return None

    async def stock_done(self, request_id: str) -> None: ...

    def open(self, worker_id: int, request: dict[str, Any], context: Any) -> Stream:
        return Stream([HANDOVER])

    async def release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None: ...


class Decodes:
    """Decode workers that answer at once."""

    def live(self) -> tuple[int, ...]:
        return DECODES

    def open(self, worker_id: int, request: dict[str, Any], context: Any, leg_id: str) -> Stream:
        last = {"token_ids": [2], "index": 0, "finish_reason": "stop"}
        return Stream([{"token_ids": [1], "index": 0}, last])


class Context:
    """A client that stays, or one that leaves at once."""

    def __init__(self, name: str, leaves: bool) -> None:
        self._name = name
        self._gone = asyncio.Event()
        if leaves:
            self._gone.set()

    def id(self) -> str:
        return self._name

    def is_stopped(self) -> bool:
        return self._gone.is_set()

    def detached(self, name: str) -> Context:
        return Context(name, False)

    def async_killed_or_stopped(self) -> Any:
        return self._gone.wait()


class Site:
    """A relay in this process."""

    def __init__(self, folder: Path) -> None:
        clock, slo, router = Clock(), Slo(1000.0, 50.0), RouterConfig()
        costs = read_profile("dense70b_tp4").cost_model()
        self.queues = PrefillQueues(InFlightBound(2048), 10.0)
        self.decode = DecodeState(10.0, followed=True)
        self.decode.sync(DECODES)
        loads = DecodeLoads(self.decode.hold)
        metrics = RouterMetrics(CollectorRegistry(), "toll")
        row = RouterRow("memory", 0, 1, "m", "relay", "toll", "", 1000.0, 50.0, 1.0, 0.0)
        log = DecisionLog(folder / "decisions.jsonl", row, 1 << 20, 2)
        self.core = RouterCore(
            PLACEMENTS["toll"](costs, slo, router.params(), Random(0)),
            costs,
            Objectives(slo),
            CoreSettings(20.0, 60.0, sticky_sessions=True, handover_s=30.0),
            Prefills(),
            self.queues,
            self.decode,
            clock,
            metrics,
            log,
        )
        self.binding = Binding(loads, Random(0))
        self.binding.hold_at_most(200_000)
        lease = StreamSettings(migration_limit=3, lease=KvLease(30.0, 5.0))
        self.relay = StreamRelay(
            self.core, Prefills(), Decodes(), self.binding, loads, lease, clock, metrics, log
        )

    async def serve(self, number: int, rng: Random) -> None:
        """One request of a session of its own; one in ten clients leaves at once."""
        start = rng.randrange(50_000)
        request = {
            "token_ids": list(range(start, start + rng.randrange(64, 512))),
            "stop_conditions": {"max_tokens": 2},
            "agent_context": {"session_id": f"session-{number}"},
            "annotations": [f"tenant:t{number % 1000}"],
        }
        context = Context(f"r{number}", rng.random() < 0.1)
        async for _ in self.relay.serve(request, context):
            pass

    def held(self) -> int:
        """What should be nothing when nobody is served."""
        return (
            self.relay.open_streams
            + self.core.open_requests
            + self.queues.waiting()
            + self.queues.in_flight()
            + self.core.pinned.total_tokens()
        )


async def run_sessions(count: int) -> dict[str, Any]:
    """Serve one request of each of `count` sessions; memory early and late."""
    rng = Random(1)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        early_mb = 0.0
        for start in range(0, count, AT_ONCE):
            batch = range(start, min(start + AT_ONCE, count))
            await asyncio.gather(*(site.serve(number, rng) for number in batch))
            if early_mb == 0.0 and start >= count // 5:
                early_mb = rss_mb()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not site.held():
                break
        site.core.sweep()
        return {
            "sessions": count,
            "rss_mb_early": early_mb,
            "rss_mb_late": rss_mb(),
            "held_after": site.held(),
        }


def rss_mb() -> float:
    """Memory of this process, garbage collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)
