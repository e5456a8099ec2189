# SPDX-License-Identifier: Apache-2.0
"""The broker attachment: the router stands in for the prefill component of a deployment.

The stock frontend sends it the prefill leg; it answers with a hand-over from a real prefill
worker of the private namespace, or with "prefill locally". Decode streams never pass here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from controller.config import DeploymentConfig
from controller.estimation.roster import ROUTER_MARK
from controller.runtime.router.attachment import RouterProcess
from controller.runtime.router.loras import Loras
from controller.runtime.router.mirror import runtime_config

_SIZES = ("total_kv_blocks", "max_num_seqs", "max_num_batched_tokens")


class Broker:
    """One broker process: `run()` is its life."""

    def __init__(self, config: DeploymentConfig, run_dir: Path, replica: int = 0) -> None:
        self._config = config
        self._process = RouterProcess(config, run_dir, replica)

    async def run(self) -> None:
        """Register, serve until SIGTERM or SIGINT, deregister."""
        config = self._config
        try:
            # A prefill worker's card, or a decode worker's while none is up.
            parts = await self._process.start(
                card_of=(config.prefill_endpoint, config.decode_endpoint),
                sticky_sessions=config.frontend.session_affinity_ttl_s is not None,
            )
            endpoint = parts.runtime.endpoint(config.router_endpoint)
            await _register(endpoint, config.model, parts.block_size, parts.card)
            self._process.announce(int(endpoint.connection_id()))
            loras = Loras(config, parts)
            self._process.keep(loras.offer_as_prefill_worker(endpoint))

            async def generate(
                request: dict[str, Any], context: Any
            ) -> AsyncGenerator[dict[str, Any], None]:
                only = loras.holders(request.get("model"))
                async for chunk in parts.core.prefill(request, context.id(), context, only=only):
                    yield chunk

            await endpoint.serve_endpoint(generate, graceful_shutdown=True)
        finally:
            self._process.close()


async def _register(endpoint: Any, model: str, block_size: int, card: dict[str, Any]) -> None:
    from dynamo.llm import ModelInput, ModelType, WorkerType, register_model

    config = runtime_config(card, only=_SIZES)
    config.set_engine_specific(ROUTER_MARK, json.dumps(True))
    await register_model(
        ModelInput.Tokens,
        ModelType.Prefill,
        endpoint,
        model,
        card.get("display_name") or model,
        worker_type=WorkerType.Prefill,
        needs=[[WorkerType.Decode]],
        kv_cache_block_size=block_size,
        runtime_config=config,
        ignore_weights=True,
        # Each name of the model needs a prefill worker of that name.
        model_aliases=card.get("aliases"),
    )
