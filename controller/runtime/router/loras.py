# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of the workers, offered again at the relay.

Dynamo's Python API does not hand out adapter cards (`FpmEventSubscriber.get_model_cards` gives the
base model's only, 1.4.2), so the workers themselves are asked: `list_loras`, which every worker
with LoRA serves beside `generate`. An adapter is offered while *every* live worker of both pools
has it: a worker without it would answer with the base model, and nobody would notice. Loading and
unloading stay where they are, at the workers.

Owns: which adapters the relay offers. Does not own: the base card (mirror.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from controller.runtime.dynamo_io import chunk_data
from controller.runtime.router.mirror import runtime_config, surfaces

logger = logging.getLogger(__name__)

_POLL_S = 2.0
_ASK_TIMEOUT_S = 5.0

Offer = Callable[[str, int], Awaitable[None]]
Withdraw = Callable[[str], Awaitable[None]]
Adapters = dict[str, int]
"""Adapter ids by name."""


class LoraMirror:
    """Keeps the offered adapters equal to those that every worker has."""

    def __init__(self, offer: Offer, withdraw: Withdraw) -> None:
        self._offer = offer
        self._withdraw = withdraw
        self.offered: Adapters = {}

    async def update(self, workers: Iterable[Adapters]) -> None:
        """Bring the offers in line with what each live worker has loaded."""
        common = in_common(workers)
        for name in [n for n in self.offered if n not in common]:
            await self._withdraw(name)
            del self.offered[name]
            logger.info("router.lora_withdrawn name=%s", name)
        for name, number in common.items():
            if name not in self.offered:
                await self._offer(name, number)
                self.offered[name] = number
                logger.info("router.lora_offered name=%s", name)


def in_common(workers: Iterable[Adapters]) -> Adapters:
    """The adapters that all of them have; none when there is no worker."""
    held = list(workers)
    if not held:
        return {}
    return {
        name: number for name, number in held[0].items() if all(name in rest for rest in held[1:])
    }


class LoraSource:
    """Asks the workers of one endpoint for their adapters."""

    def __init__(self, runtime: Any, endpoint: str, workers: Any) -> None:
        self._runtime = runtime
        self._path = endpoint.rsplit(".", 1)[0] + ".list_loras"
        self._workers = workers
        self._client: Any = None

    async def adapters(self) -> list[Adapters]:
        """One entry a live worker; a worker that cannot say has none."""
        if self._client is None:
            self._client = await self._runtime.endpoint(self._path).client()
        return await asyncio.gather(*(self._ask(w) for w in self._workers.instance_ids()))

    async def _ask(self, worker_id: int) -> Adapters:
        try:
            return await asyncio.wait_for(self._listed(worker_id), _ASK_TIMEOUT_S)
        except Exception as error:
            logger.debug("router.lora_list_failed worker=%x error=%s", worker_id, error)
            return {}

    async def _listed(self, worker_id: int) -> Adapters:
        async for item in await self._client.direct({}, worker_id):
            loras = (chunk_data(item) or {}).get("loras")
            if isinstance(loras, dict):
                return {str(name): int(number) for name, number in loras.items()}
        return {}


async def mirror_loras(
    endpoint: Any, model: str, card: dict[str, Any], sources: Iterable[LoraSource]
) -> None:
    """Follow the workers' adapters until cancelled; at once over for a model without LoRA."""
    if not (card.get("runtime_config") or {}).get("max_gpu_lora_count"):
        return
    mirror = LoraMirror(*_registrar(endpoint, model, card))
    asked = list(sources)
    while True:
        # The frontend refuses an adapter whose base model it has not seen yet: not at once.
        await asyncio.sleep(_POLL_S)
        try:
            held = [adapters for source in asked for adapters in await source.adapters()]
            await mirror.update(held)
        except Exception as error:
            logger.warning("router.lora_mirror_failed error=%s", error)


def _registrar(endpoint: Any, model: str, card: dict[str, Any]) -> tuple[Offer, Withdraw]:
    from dynamo.llm import ModelInput, WorkerType, register_model, unregister_model

    path = card.get("source_path") or model
    limit = (card.get("runtime_config") or {}).get("max_gpu_lora_count")

    async def offer(name: str, number: int) -> None:
        await register_model(
            ModelInput.Tokens,
            surfaces(card),
            endpoint,
            path,
            worker_type=WorkerType.Aggregated,
            kv_cache_block_size=card.get("kv_cache_block_size"),
            runtime_config=runtime_config(card),
            user_data={"lora_adapter": True, "lora_id": number},
            lora_name=name,
            base_model_path=path,
            max_gpu_lora_count=limit,
            ignore_weights=True,
        )

    async def withdraw(name: str) -> None:
        await unregister_model(endpoint, name)

    return offer, withdraw
