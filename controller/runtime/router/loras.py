# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters of the workers, offered again at the router that hides them.

Dynamo's Python API does not hand out adapter cards (`FpmEventSubscriber.get_model_cards` gives the
base model's only, 1.4.2), so the workers themselves are asked: `list_loras`, which every worker
with LoRA serves beside `generate`. Loading and unloading stay where they are, at the workers.

- A relay offers an adapter, as the front door that it is, while *every* live worker of both pools
  has it: a worker without it would answer with the base model, and nobody would notice.
- A broker offers one, as a prefill worker would, while any decode worker does: their own adapter
  cards need a prefill worker in their namespace before the frontend lists them. Its prefills go
  to the workers that have it (`holders`), or local. It must be the last to withdraw: a frontend
  (1.4.2) that sees an adapter's prefill side leave before its decode side never again sends the
  *base* model's prefills to prefill workers.

Owns: which adapters a router offers, and who has them. Does not own: the base card (mirror.py,
broker.py), placing (core.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from controller.config import DeploymentConfig
from controller.runtime.dynamo_io import chunk_data
from controller.runtime.router.attachment import Parts
from controller.runtime.router.mirror import runtime_config, surfaces

logger = logging.getLogger(__name__)

_POLL_S = 2.0
_ASK_TIMEOUT_S = 5.0

Offer = Callable[[str, int], Awaitable[None]]
Withdraw = Callable[[str], Awaitable[None]]
Adapters = dict[str, int]
"""Adapter ids by name."""


class LoraMirror:
    """Keeps the offered adapters equal to what is wanted."""

    def __init__(self, offer: Offer, withdraw: Withdraw) -> None:
        self._offer = offer
        self._withdraw = withdraw
        self.offered: Adapters = {}

    async def update(self, wanted: Adapters) -> None:
        """Bring the offers in line."""
        for name in [n for n in self.offered if n not in wanted]:
            await self._withdraw(name)
            del self.offered[name]
            logger.info("router.lora_withdrawn name=%s", name)
        for name, number in wanted.items():
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


def anywhere(workers: Iterable[Adapters]) -> Adapters:
    """The adapters that at least one of them has."""
    return {name: number for held in workers for name, number in held.items()}


class LoraSource:
    """Asks the workers of one endpoint for their adapters, and remembers what they said."""

    def __init__(self, runtime: Any, endpoint: str, workers: Any) -> None:
        self._runtime = runtime
        self._path = endpoint.rsplit(".", 1)[0] + ".list_loras"
        self._workers = workers
        self._client: Any = None
        self.held: dict[int, Adapters] = {}
        """By live worker, as of the last `ask`."""

    async def ask(self) -> None:
        """Ask every live worker; one that cannot say has what it had before, at first nothing."""
        if self._client is None:
            self._client = await self._runtime.endpoint(self._path).client()
        ids = list(self._workers.instance_ids())
        answers = await asyncio.gather(*map(self._ask, ids))
        self.held = dict(zip(ids, answers, strict=True))

    async def _ask(self, worker_id: int) -> Adapters:
        try:
            return await asyncio.wait_for(self._listed(worker_id), _ASK_TIMEOUT_S)
        except Exception as error:
            logger.debug("router.lora_list_failed worker=%x error=%s", worker_id, error)
            return self.held.get(worker_id, {})

    async def _listed(self, worker_id: int) -> Adapters:
        async for item in await self._client.direct({}, worker_id):
            loras = (chunk_data(item) or {}).get("loras")
            if isinstance(loras, dict):
                return {str(name): int(number) for name, number in loras.items()}
        return {}


class Loras:
    """The adapters of one deployment, followed by a router process."""

    def __init__(self, config: DeploymentConfig, parts: Parts) -> None:
        self._model = config.model
        self._card = parts.card
        self._decode = LoraSource(parts.runtime, config.decode_endpoint, parts.decode_client)
        self._prefill = LoraSource(parts.runtime, config.prefill_endpoint, parts.prefill_client)

    def holders(self, model: Any) -> frozenset[int] | None:
        """The prefill workers that have this adapter; None when `model` is no adapter."""
        if not any(model in held for held in self._decode.held.values()):
            return None
        return frozenset(w for w, held in self._prefill.held.items() if model in held)

    async def offer_as_front_door(self, endpoint: Any) -> None:
        """A relay's: follow the workers until cancelled."""
        from dynamo.llm import WorkerType

        role = {"model_type": surfaces(self._card), "worker_type": WorkerType.Aggregated}

        def wanted(offered: Adapters) -> Adapters:
            return in_common([*self._decode.held.values(), *self._prefill.held.values()])

        await self._follow(endpoint, role, wanted)

    async def offer_as_prefill_worker(self, endpoint: Any) -> None:
        """A broker's: follow the workers until cancelled."""
        from dynamo.llm import ModelType, WorkerType

        role = {
            "model_type": ModelType.Prefill,
            "worker_type": WorkerType.Prefill,
            "needs": [[WorkerType.Decode]],
        }

        def wanted(offered: Adapters) -> Adapters:
            decode = self._decode.held
            return anywhere(decode.values()) if decode else offered

        await self._follow(endpoint, role, wanted)

    async def _follow(
        self, endpoint: Any, role: dict[str, Any], wanted: Callable[[Adapters], Adapters]
    ) -> None:
        """At once over for a model without LoRA."""
        if not (self._card.get("runtime_config") or {}).get("max_gpu_lora_count"):
            return
        mirror = LoraMirror(*_registrar(endpoint, self._model, self._card, role))
        while True:
            # The frontend refuses an adapter whose base model it has not seen yet: not at once.
            await asyncio.sleep(_POLL_S)
            try:
                await asyncio.gather(self._decode.ask(), self._prefill.ask())
                await mirror.update(wanted(mirror.offered))
            except Exception as error:
                logger.warning("router.lora_mirror_failed error=%s", error)


def _registrar(
    endpoint: Any, model: str, card: dict[str, Any], role: dict[str, Any]
) -> tuple[Offer, Withdraw]:
    from dynamo.llm import ModelInput, register_model, unregister_model

    path = card.get("source_path") or model

    async def offer(name: str, number: int) -> None:
        await register_model(
            model_input=ModelInput.Tokens,
            **role,
            endpoint=endpoint,
            model_path=path,
            kv_cache_block_size=card.get("kv_cache_block_size"),
            runtime_config=runtime_config(card),
            user_data={"lora_adapter": True, "lora_id": number},
            lora_name=name,
            base_model_path=path,
            max_gpu_lora_count=(card.get("runtime_config") or {}).get("max_gpu_lora_count"),
            ignore_weights=True,
        )

    async def withdraw(name: str) -> None:
        await unregister_model(endpoint, name)

    return offer, withdraw
