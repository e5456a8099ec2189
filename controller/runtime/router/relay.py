# SPDX-License-Identifier: Apache-2.0
"""The relay attachment: the router is the front door of the model and forwards whole streams.

It registers as an Aggregated worker in the frontend's namespace; the real prefill and decode
workers are out of sight in private ones, and whatever else is registered beside the relay (other
models, embeddings) stays reachable. Full control - binding, the bypass annotation, both legs
cancelled - for one Python hop a chunk. Several relays are replicas; each knows the sessions that
it served.

When the last decode worker is gone the relay stays registered and answers HTTP 503.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from controller.config import DeploymentConfig
from controller.runtime.router.attachment import Parts, RouterProcess
from controller.runtime.router.binding import Binding, DecodeLoads
from controller.runtime.router.decode_port import DynamoDecodePort
from controller.runtime.router.decode_state import PassReport
from controller.runtime.router.handover import KvLease
from controller.runtime.router.loras import Loras
from controller.runtime.router.mirror import register_front_door
from controller.runtime.router.streams import StreamRelay, StreamSettings


class Relay:
    """One relay process: `run()` is its life."""

    def __init__(self, config: DeploymentConfig, run_dir: Path, replica: int = 0) -> None:
        self._config = config
        self._process = RouterProcess(config, run_dir, replica)
        self._loads = DecodeLoads(self._process.decode.hold)
        self._binding = Binding(self._loads, Random(config.router.seed + replica))
        self._binding.shared = self._process.sessions
        self._process.sessions.adopt = self._binding.adopt

    async def run(self) -> None:
        """Register, serve until SIGTERM or SIGINT, deregister; streams in flight may end."""
        config = self._config
        try:
            # Parsers and context length are on the decode workers' card only.
            parts = await self._process.start(
                card_of=(config.decode_endpoint,),
                sticky_sessions=True,
                on_report=self._observe,
            )
            if parts.kv_tokens is not None:
                self._binding.hold_at_most(parts.kv_tokens)
            streams = self._streams(parts)
            self._export(parts, streams)
            endpoint = parts.runtime.endpoint(config.router_endpoint)
            affinity_s = config.frontend.session_affinity_ttl_s
            await register_front_door(endpoint, config.model, parts.card, affinity_s)
            self._process.announce(int(endpoint.connection_id()))
            self._process.keep(Loras(config, parts).offer_as_front_door(endpoint))
            await endpoint.serve_endpoint(streams.serve, graceful_shutdown=True)
        finally:
            self._process.close()

    def _streams(self, parts: Parts) -> StreamRelay:
        router, frontend = self._config.router, self._config.frontend
        timeout_s = frontend.stream_timeout_s
        return StreamRelay(
            parts.core,
            parts.prefill_port,
            DynamoDecodePort(parts.decode_client),
            self._binding,
            self._loads,
            StreamSettings(
                migration_limit=frontend.migration_limit,
                lease=KvLease(router.kv_lease_s, router.kv_lease_margin_s),
                silence_s=None if timeout_s is None else float(timeout_s),
                transfer_s=self._process.clock.wall(router.transfer_timeout_s),
                most_streams=router.max_requests,
            ),
            self._process.clock,
            self._process.metrics,
            parts.log,
        )

    def _observe(self, report: PassReport) -> None:
        now_s = self._process.clock.now()
        self._loads.observe(report.worker_id, report.decode_kv_tokens, now_s)

    def _export(self, parts: Parts, streams: StreamRelay) -> None:
        def live() -> int:
            ids: Any = parts.decode_client.instance_ids()
            return len(ids)

        metrics = self._process.metrics
        metrics.gauge("decode_workers", "Live decode workers.", live)
        metrics.gauge("streams", "Client streams open here.", lambda: streams.open_streams)
        binding = self._binding
        for name, text, read in (
            (
                "prompt_index_blocks",
                "Prompt blocks known by decode worker.",
                binding.prompts.__len__,
            ),
            (
                "prompt_index_evictions",
                "Prompt blocks forgotten for want of room.",
                lambda: binding.prompts.evicted,
            ),
            (
                "session_evictions",
                "Sessions whose decode worker was forgotten for want of room.",
                lambda: binding.evicted_sessions,
            ),
        ):
            metrics.gauge(name, text, read)
