# SPDX-License-Identifier: Apache-2.0
"""A relay over scripted workers: a real core, fake prefill and decode ports, a fake context."""

from __future__ import annotations

import asyncio
import json
from random import Random

from prometheus_client import CollectorRegistry

from controller.routing.decision_record import RouterRow
from controller.routing.inflight import InFlightBound
from controller.routing.registry import PLACEMENTS
from controller.runtime.clock import Clock
from controller.runtime.router.binding import Binding, DecodeLoads
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_state import DecodeState
from controller.runtime.router.handover import KvLease
from controller.runtime.router.hints import Objectives
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.streams import StreamRelay, StreamSettings
from controller.types import RoutingParams, Slo

PREFILL_WORKER = 1
HANDOVER = {"token_ids": [7], "disaggregated_params": {"kv_transfer_params": {"handle": 1}}}
DISCONNECTED = ValueError("Disconnected: Stream ended before generation completed")


def router_row(policy):
    """Who decides, for a log."""
    return RouterRow("r", 0, 1, "m", "relay", policy, "unit", 1000.0, 50.0, 1.0, 0.0)


class FakeContext:
    """A client's context; `detached` ones have a life of their own, as Dynamo's do."""

    def __init__(self, name="r1"):
        self._name = name
        self.stop = asyncio.Event()

    def id(self):
        return self._name

    def is_stopped(self):
        return self.stop.is_set()

    def detached(self, name):
        return FakeContext(name)

    def async_killed_or_stopped(self):
        return asyncio.ensure_future(self.stop.wait())


class FakeStream:
    """As ports.DynamoStream: it ends when the context that it follows stops."""

    def __init__(self, script, request, context):
        self._script = script
        self._request = request
        self._context = context
        self.stopped = asyncio.Event()
        self.ended = False

    def stop(self):
        self.stopped.set()

    async def chunks(self):
        watcher = self._context.async_killed_or_stopped()
        watcher.add_done_callback(lambda future: future.cancelled() or self.stop())
        try:
            async for chunk in self._script(self._request, self.stopped):
                yield chunk
        finally:
            watcher.cancel()
            self.ended = True


class FakePrefill:
    """One prefill worker; `script` is an async generator function of (request, stopped)."""

    def __init__(self, script):
        self.script = script
        self.sent = []
        self.contexts = []
        self.streams = []
        self.released = []

    def live(self):
        return (PREFILL_WORKER,) if self.script else ()

    def rank(self, unit_id):
        return None

    async def cached_tokens(self, token_ids):
        return {}

    def open(self, worker_id, request, context):
        self.sent.append(request)
        self.contexts.append(context)
        self.streams.append(FakeStream(self.script, request, context))
        return self.streams[-1]

    async def release(self, request, chunk):
        self.released.append(chunk)


class FakeDecode:
    """Decode workers by id, each a script; `sent` lists (worker, request, leg id)."""

    def __init__(self, workers):
        self.workers = workers
        self.sent = []
        self.streams = []

    def live(self):
        return tuple(self.workers)

    def open(self, worker_id, request, context, leg_id):
        self.sent.append((worker_id, request, leg_id))
        self.streams.append(FakeStream(self.workers[worker_id], request, context))
        return self.streams[-1]


async def hands_over(request, stopped):
    yield HANDOVER


async def answers(request, stopped):
    """As many tokens as are asked for: token = prompt length so far."""
    start = len(request["token_ids"])
    wanted = request["stop_conditions"]["max_tokens"]
    for index in range(wanted):
        chunk = {"token_ids": [start + index], "index": 0, "log_probs": [-0.5]}
        if index == wanted - 1:
            chunk["finish_reason"] = "length"
            chunk["completion_usage"] = {
                "prompt_tokens": start,
                "completion_tokens": wanted,
                "total_tokens": start + wanted,
                "prompt_tokens_details": {"cached_tokens": start},
            }
        yield chunk
        await asyncio.sleep(0)


def breaks_after(tokens, error=DISCONNECTED):
    """Streams `tokens` tokens, then raises."""

    async def script(request, stopped):
        count = 0
        async for chunk in answers(request, stopped):
            if count == tokens:
                break
            yield chunk
            count += 1
        raise error

    return script


async def waits(request, stopped):
    """Never says anything; ends when it is stopped."""
    await stopped.wait()
    return
    yield


class RelayHarness:
    """`await harness.run()` serves one request to its end and returns the chunks."""

    def __init__(self, costs, tmp_path, decode, prefill=hands_over, **settings):
        self.registry = CollectorRegistry()
        self.log_path = tmp_path / "decisions.jsonl"
        self.prefill = FakePrefill(prefill)
        self.decode = FakeDecode(decode)
        self.queues = PrefillQueues(InFlightBound(1000), 10)
        self.clock = settings.pop("clock", Clock())
        policy = settings.pop("policy", "always_remote")
        self.log = DecisionLog(self.log_path, router_row(policy))
        core = {"max_wait_s": 5.0, "prefill_timeout_s": 5.0, "handover_s": 30.0}
        self.decode_state = DecodeState(10, followed=True)
        self.loads = DecodeLoads(self.decode_state.hold)
        metrics = RouterMetrics(self.registry, policy)
        self.core = RouterCore(
            PLACEMENTS[policy](costs, Slo(1000, 50), RoutingParams(), Random(0)),
            costs,
            Objectives(Slo(1000, 50)),
            CoreSettings(**core, sticky_sessions=True),
            self.prefill,
            self.queues,
            self.decode_state,
            self.clock,
            metrics,
            self.log,
        )
        limits = {"migration_limit": 3, "lease": KvLease(30.0, 5.0)} | settings
        self.relay = StreamRelay(
            self.core,
            self.prefill,
            self.decode,
            Binding(self.loads, Random(0)),
            self.loads,
            StreamSettings(**limits),
            self.clock,
            metrics,
            self.log,
        )

    async def run(self, context=None, prompt=100, max_tokens=4, **request):
        body = {
            "token_ids": list(range(prompt)),
            "stop_conditions": {"max_tokens": max_tokens},
            "extra_args": {"keep": "me"},
        } | request
        return [chunk async for chunk in self.relay.serve(body, context or FakeContext())]

    async def settle(self):
        """Let background tasks end."""
        for _ in range(20):
            await asyncio.sleep(0)

    def records(self, kind="decision"):
        self.log.close()
        rows = [json.loads(line) for line in self.log_path.read_text().splitlines()]
        return [row for row in rows if row["kind"] == kind]

    def counted(self, name):
        return self.registry.get_sample_value(f"dynamo_equilibrium_{name}")
