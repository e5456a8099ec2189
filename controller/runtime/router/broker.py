# SPDX-License-Identifier: Apache-2.0
"""The broker attachment: the router stands in for the prefill component of a deployment.

The stock frontend sends it the prefill leg; it answers with a hand-over from a real prefill
worker of the private namespace, or with "prefill locally". Decode streams never pass here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from controller.config import DeploymentConfig
from controller.costs.model import CostModel
from controller.errors import UserError
from controller.routing.inflight import InFlightBound
from controller.routing.registry import PLACEMENTS
from controller.runtime.clock import Clock
from controller.runtime.dynamo_io import make_runtime
from controller.runtime.resources import read_profile
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decode_state import DecodeState, PassReport
from controller.runtime.router.ports import (
    DynamoPrefillPort,
    PassReports,
    PrefixIndex,
    read_cards,
)
from controller.runtime.router.queues import PrefillQueues
from controller.runtime.router.records import DecisionLog, RouterMetrics

logger = logging.getLogger(__name__)

_CARD_WAIT_S = 30.0
_SYNC_PERIOD_S = 0.2


class Broker:
    """One broker process: `run()` is its life."""

    def __init__(self, config: DeploymentConfig, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._clock = Clock(config.time_scale)
        self._registry = CollectorRegistry()
        self._metrics = RouterMetrics(self._registry, config.router.policy)
        self._decode = DecodeState(config.router.window_s)
        bound = InFlightBound(config.router.max_num_batched_tokens)
        self._queues = PrefillQueues(bound, config.router.window_s)

    async def run(self) -> None:
        """Register, serve until SIGTERM or SIGINT, deregister."""
        config = self._config
        costs = read_profile(config.router.profile).cost_model()
        runtime = make_runtime(config.dynamo)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runtime.shutdown)
        prefill = runtime.endpoint(f"{config.prefill_namespace}.prefill.generate")
        decode = runtime.endpoint(f"{config.dynamo.namespace}.backend.generate")
        decode_client = await decode.client()
        card = await self._card(prefill, decode)
        block_size = int(card.get("kv_cache_block_size") or 64)
        port = DynamoPrefillPort(
            await prefill.client(), decode_client, PrefixIndex(prefill, block_size)
        )
        reports = PassReports(decode, self._observe)
        log = DecisionLog(self._run_dir / "decisions.jsonl")
        core = self._core(costs, port, log)
        self._export(port)
        syncing = asyncio.create_task(self._sync(port, decode_client))
        endpoint = runtime.endpoint(f"{config.dynamo.namespace}.prefill.generate")
        await _register(endpoint, config.model, block_size, card)
        self._announce(int(endpoint.connection_id()))

        async def generate(
            request: dict[str, Any], context: Any
        ) -> AsyncGenerator[dict[str, Any], None]:
            async for chunk in core.prefill(request, context.id(), context):
                yield chunk

        try:
            await endpoint.serve_endpoint(generate, graceful_shutdown=True)
        finally:
            syncing.cancel()
            reports.close()
            log.close()

    def _core(self, costs: CostModel, port: DynamoPrefillPort, log: DecisionLog) -> RouterCore:
        router = self._config.router
        slo = self._config.slo.value()
        rule = PLACEMENTS[router.policy](costs, slo, router.params(), Random(router.seed))
        settings = CoreSettings(
            max_wait_s=router.max_wait_s,
            prefill_timeout_s=router.prefill_timeout_s,
            sticky_sessions=self._config.frontend.session_affinity_ttl_s is not None,
        )
        return RouterCore(
            rule,
            costs,
            settings,
            port,
            self._queues,
            self._decode,
            self._clock,
            self._metrics,
            log,
        )

    def _observe(self, report: PassReport) -> None:
        self._decode.observe(report, self._clock.now())

    async def _sync(self, port: DynamoPrefillPort, decode_client: Any) -> None:
        """Follow discovery also while no request comes in, so that waiters learn of a death."""
        while True:
            self._queues.sync(port.live())
            self._decode.sync(decode_client.instance_ids())
            await asyncio.sleep(_SYNC_PERIOD_S)

    async def _card(self, prefill: Any, decode: Any) -> dict[str, Any]:
        """The model card to mirror: a prefill worker's, or a decode worker's while none is up."""
        from dynamo.llm import FpmEventSubscriber

        subscribers = [FpmEventSubscriber(endpoint) for endpoint in (prefill, decode)]
        for subscriber in subscribers:
            subscriber.start_tracking()
        try:
            deadline = asyncio.get_running_loop().time() + _CARD_WAIT_S
            while True:
                for subscriber in subscribers:
                    cards = read_cards(subscriber)
                    if cards:
                        return next(iter(cards.values()))
                if asyncio.get_running_loop().time() > deadline:
                    raise UserError(
                        f"no worker registered a model card within {_CARD_WAIT_S:g} s at "
                        f"{self._config.prefill_namespace}.prefill.generate or "
                        f"{self._config.dynamo.namespace}.backend.generate; start the workers, "
                        "or check dynamo.namespace and router.prefill_namespace"
                    )
                await asyncio.sleep(0.1)
        finally:
            for subscriber in subscribers:
                subscriber.shutdown()

    def _export(self, port: DynamoPrefillPort) -> None:
        now = self._clock.now
        for name, text, read in (
            ("prefill_workers", "Live prefill workers.", lambda: len(port.live())),
            ("queue_waiting", "Prefills held back at the router.", self._queues.waiting),
            ("prefills_in_flight", "Prefills sent, not finished.", self._queues.in_flight),
            (
                "queue_oldest_age_seconds",
                "Age of the oldest unfinished prefill.",
                lambda: self._queues.oldest_age_s(now()),
            ),
        ):
            self._metrics.gauge(name, text, read)

    def _announce(self, instance_id: int) -> None:
        """Open the metrics port and say where, for the operator and the launcher."""
        server, _ = start_http_server(
            self._config.router.metrics_port, addr="127.0.0.1", registry=self._registry
        )
        facts = {"instance_id": instance_id, "metrics_port": server.server_port}
        (self._run_dir / "router.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        logger.info(
            "router.serving instance=%x policy=%s metrics=http://127.0.0.1:%d/metrics",
            instance_id,
            self._config.router.policy,
            server.server_port,
        )


async def _register(endpoint: Any, model: str, block_size: int, card: dict[str, Any]) -> None:
    from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model

    runtime_config = ModelRuntimeConfig()
    mirrored = card.get("runtime_config") or {}
    for field in ("total_kv_blocks", "max_num_seqs", "max_num_batched_tokens"):
        if mirrored.get(field) is not None:
            setattr(runtime_config, field, mirrored[field])
    await register_model(
        ModelInput.Tokens,
        ModelType.Prefill,
        endpoint,
        model,
        card.get("display_name") or model,
        worker_type=WorkerType.Prefill,
        needs=[[WorkerType.Decode]],
        kv_cache_block_size=block_size,
        runtime_config=runtime_config,
        ignore_weights=True,
    )
