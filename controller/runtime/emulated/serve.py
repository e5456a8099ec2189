# SPDX-License-Identifier: Apache-2.0
"""Emulated workers as Dynamo components: registration, publishers, life and orderly end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from controller.config import DeploymentConfig, EmulatedConfig
from controller.costs.model import TableCost
from controller.engine import CacheEvent, EngineSpec
from controller.runtime.clock import Clock
from controller.runtime.dynamo_io import make_runtime
from controller.runtime.emulated.handler import Handler
from controller.runtime.emulated.publishers import CachePublisher, StepPublisher
from controller.runtime.emulated.side_channel import Peer, SideChannelClient, SideChannelServer
from controller.runtime.emulated.worker import EmulatedWorker, StepRecord
from controller.runtime.resources import read_profile
from controller.runtime.router.handover import CHUNK_SCHEDULE
from controller.runtime.stop_signals import on_stop_signals
from controller.runtime.tiny_model import MAX_CONTEXT_TOKENS, visible_token_ids

logger = logging.getLogger(__name__)

_DRAIN_LIMIT_S = 3.0


def engine_spec(config: EmulatedConfig, role: str, costs: TableCost) -> EngineSpec:
    """The engine of a pool; only a decode worker may be told to prefill for free."""
    return EngineSpec(
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        prefix_cache=config.prefix_cache,
        kv_lease_s=config.kv_lease_s,
        charge_prefill=config.charge_local_prefill or role == "prefill",
        async_scheduling=config.async_scheduling,
        verified_tokens=costs.verified_tokens,
        emitted_tokens=costs.tokens_per_step,
    )


def endpoint_path(config: DeploymentConfig, role: str) -> str:
    """Where workers of a role register."""
    return config.prefill_endpoint if role == "prefill" else config.decode_endpoint


class EmulatedService:
    """One worker with its own DistributedRuntime, registered as a Dynamo instance."""

    def __init__(self, config: DeploymentConfig, role: str, name: str, run_dir: Path) -> None:
        self._config = config
        self._role = role
        self._name = name
        self._facts = run_dir / "workers" / f"{name}.json"
        self._pool = config.prefill if role == "prefill" else config.decode
        self._runtime = make_runtime(config.dynamo)
        self._endpoint = self._runtime.endpoint(endpoint_path(config, role))
        self.instance_id = int(self._endpoint.connection_id())

    async def serve(
        self, channel: SideChannelServer, client: SideChannelClient, peer: Peer
    ) -> None:
        """Register and serve until `shutdown`."""
        emulated = self._pool.emulated
        steps = StepPublisher(self._endpoint, self.instance_id)
        cache = CachePublisher(self._endpoint, self.instance_id, emulated.block_size)
        worker = self._make_worker(client, steps.publish, cache.publish)
        channel.attach(worker.engine_id, worker.answer)
        handler = Handler(
            worker,
            self._role,
            emulated.block_size,
            MAX_CONTEXT_TOKENS,
            peer,
            visible_token_ids(),
            cache,
        )
        await self._register(emulated)
        loop_task = asyncio.create_task(worker.run(), name=f"steps-{self._name}")
        loop_task.add_done_callback(_die_loudly)
        self._write_facts(worker, peer)
        logger.info("worker.serving name=%s instance=%x", self._name, self.instance_id)
        try:
            await self._endpoint.serve_endpoint(
                handler.generate, graceful_shutdown=True, metrics_labels=[("role", self._role)]
            )
            await self._drain(worker)
        finally:
            loop_task.cancel()
            self._write_facts(worker, peer)

    async def _drain(self, worker: EmulatedWorker) -> None:
        """Keep answering the side channel until handed-over KV has been pulled, within a bound.

        A worker that leaves at once takes finished prefills with it, and their requests fail.
        """
        deadline = asyncio.get_running_loop().time() + _DRAIN_LIMIT_S
        while worker.load.pinned_requests and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def shutdown(self) -> None:
        """Deregister at once; running requests may end."""
        self._runtime.shutdown()

    def _write_facts(self, worker: EmulatedWorker, peer: Peer) -> None:
        """Who this worker is, how late the host woke it, and where to ask for its load."""
        channel = {"host": peer.host, "port": peer.port, "engine_id": worker.engine_id}
        facts = {
            "instance_id": self.instance_id,
            "max_lag_ms": worker.max_lag_s * 1e3,
            "side_channel": channel,
        }
        self._facts.parent.mkdir(parents=True, exist_ok=True)
        self._facts.write_text(json.dumps(facts) + "\n", encoding="utf-8")

    def _make_worker(
        self,
        client: SideChannelClient,
        on_step: Callable[[StepRecord], None],
        on_cache: Callable[[list[CacheEvent]], None],
    ) -> EmulatedWorker:
        emulated = self._pool.emulated
        costs = read_profile(emulated.profile).cost_model(emulated.slowdown)
        return EmulatedWorker(
            engine_id=f"{self._name}-{self.instance_id:x}",
            spec=engine_spec(emulated, self._role, costs),
            costs=costs,
            clock=Clock(self._config.time_scale),
            channel=client,
            on_step=on_step,
            on_cache=on_cache,
        )

    async def _register(self, emulated: EmulatedConfig) -> None:
        from dynamo.llm import (
            ModelInput,
            ModelRuntimeConfig,
            ModelType,
            WorkerType,
            register_model,
        )

        runtime_config = ModelRuntimeConfig()
        runtime_config.total_kv_blocks = emulated.num_blocks
        runtime_config.max_num_seqs = emulated.max_num_seqs
        runtime_config.max_num_batched_tokens = emulated.max_num_batched_tokens
        runtime_config.set_engine_specific(CHUNK_SCHEDULE, json.dumps(True))
        prefill = self._role == "prefill"
        await register_model(
            ModelInput.Tokens,
            ModelType.Prefill if prefill else ModelType.Chat | ModelType.Completions,
            self._endpoint,
            self._config.model,
            self._config.model,
            worker_type=WorkerType.Prefill if prefill else WorkerType.Decode,
            needs=[[WorkerType.Decode if prefill else WorkerType.Prefill]],
            kv_cache_block_size=emulated.block_size,
            runtime_config=runtime_config,
            ignore_weights=True,
        )


def _die_loudly(task: asyncio.Task[None]) -> None:
    # A worker whose step loop died would accept requests and never answer: worse than none.
    if not task.cancelled() and task.exception() is not None:
        logger.critical("worker.step_loop_died", exc_info=task.exception())
        os._exit(70)


async def serve_workers(
    config: DeploymentConfig, role: str, index: int, count: int, run_dir: Path
) -> None:
    """Serve `count` workers of a role, named from `index` on, until SIGTERM or SIGINT."""
    services = [EmulatedService(config, role, f"{role}-{index + i}", run_dir) for i in range(count)]

    def stop() -> None:
        for service in services:
            service.shutdown()

    channel, client = SideChannelServer(), SideChannelClient()
    peer = await channel.start()
    try:
        with on_stop_signals(stop):
            await asyncio.gather(*(service.serve(channel, client, peer) for service in services))
    finally:
        client.close()
        channel.close()
