# SPDX-License-Identifier: Apache-2.0
"""The real workers behind the core: Dynamo clients, prefix index, ForwardPassMetrics, cards."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from controller.routing.units import rank_of, unit, worker_of
from controller.runtime.dynamo_io import chunk_data
from controller.runtime.router.decode_state import EngineFacts, PassReport
from controller.runtime.router.failures import is_break
from controller.runtime.router.handover import CHUNK_SCHEDULE, release_request

logger = logging.getLogger(__name__)


class PrefixIndex:
    """Which prompt prefixes each prefill worker's cache holds, from their KV events.

    Dynamo's KvRouter is used as an index only. It is made once the first worker is there, off
    the event loop, since it waits for workers; until then, and after a failure, nothing counts
    as cached: that costs accuracy in the estimates, never a request.
    """

    def __init__(self, endpoint: Any, block_size: int) -> None:
        self._endpoint = endpoint
        self._block_size = block_size
        self._router: Any | None = None
        self._building: asyncio.Task[None] | None = None
        self._broken = False

    def ensure(self) -> None:
        """Start building the index if that has not happened yet."""
        if self._building is None:
            self._building = asyncio.create_task(self._build())

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        """Cached prompt tokens by worker id; missing means 0."""
        if self._router is None or self._broken or not token_ids:
            return {}
        try:
            scores = await self._router.get_overlap_scores(token_ids)
        except Exception as error:
            self._give_up(error)
            return {}
        hits: dict[int, int] = {}
        for row in scores["workers"]:
            tokens = int(row["device_blocks"]) * self._block_size
            name = unit(int(row["worker_id"]), int(row.get("dp_rank") or 0))
            hits[name] = max(hits.get(name, 0), tokens)
        return hits

    async def choose(self, token_ids: list[int], request_id: str) -> int | None:
        """The worker that Dynamo's KV router chooses, booked for `request_id`; None without it."""
        if self._router is None or self._broken:
            return None
        try:
            worker_id, rank, _ = await self._router.best_worker(token_ids, request_id=request_id)
        except Exception as error:
            self._give_up(error)
            return None
        return unit(int(worker_id), int(rank or 0))

    async def done(self, request_id: str) -> None:
        """Take a `choose` off the books."""
        if self._router is not None and not self._broken:
            try:
                await self._router.free(request_id)
            except Exception as error:
                logger.debug("router.stock_books error=%s", error)

    async def _build(self) -> None:
        from dynamo.llm import KvRouter, KvRouterConfig

        try:
            self._router = await asyncio.to_thread(
                KvRouter, self._endpoint, self._block_size, KvRouterConfig()
            )
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning(
            "router.prefix_index_lost error=%s: estimates ignore prefix hits from here on", error
        )


class DynamoStream:
    """A request on one worker, under a context of its own that follows the client's."""

    def __init__(
        self,
        client: Any,
        worker_id: int,
        request: dict[str, Any],
        context: Any,
        leg_id: str | None = None,
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._request = request
        self._parent = context
        self._context = context.detached(leg_id or context.id())

    def stop(self) -> None:
        self._context.stop_generating()

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        follower = asyncio.create_task(self._follow())
        try:
            stream = await self._client.direct(
                self._request, self._worker_id, context=self._context
            )
            async for item in stream:
                data = chunk_data(item)
                if data is not None:
                    yield data
        finally:
            follower.cancel()

    async def _follow(self) -> None:
        await self._parent.async_killed_or_stopped()
        self.stop()


class DynamoPrefillPort:
    """`PrefillPort` over Dynamo endpoints: prefill workers, and decode workers to release."""

    def __init__(self, prefill_client: Any, decode_client: Any, index: PrefixIndex) -> None:
        self._prefill = prefill_client
        self._decode = decode_client
        self._index = index
        self._ranks: dict[int, range] = {}

    def live(self) -> tuple[int, ...]:
        ids = tuple(self._prefill.instance_ids())
        if ids:
            self._index.ensure()
        if not self._ranks:
            return ids
        return tuple(unit(w, rank) for w in ids for rank in self._ranks.get(w, range(1)))

    def equip(self, worker_id: int, ranks: range) -> None:
        """The data-parallel ranks of a worker, by its model card."""
        if len(ranks) > 1:
            self._ranks[worker_id] = ranks

    def rank(self, unit_id: int) -> int | None:
        return rank_of(unit_id) if self._ranks and worker_of(unit_id) in self._ranks else None

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        return await self._index.cached_tokens(token_ids)

    async def stock_choice(self, token_ids: list[int], request_id: str) -> int | None:
        return await self._index.choose(token_ids, request_id)

    async def stock_done(self, request_id: str) -> None:
        await self._index.done(request_id)

    def open(self, worker_id: int, request: dict[str, Any], context: Any) -> DynamoStream:
        return DynamoStream(self._prefill, worker_id, request, context)

    async def release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None:
        """Send the decode leg and cancel it at once: the engine then frees the blocks."""
        error: Exception = RuntimeError("no decode worker to release the KV through")
        for worker_id in self._decode.instance_ids():
            try:
                return await self._cancelled_leg(worker_id, release_request(request, chunk))
            except Exception as failure:
                if not is_break(failure):
                    raise
                error = failure  # dead but still listed; another one can do it
        raise error

    async def _cancelled_leg(self, worker_id: int, request: dict[str, Any]) -> None:
        from dynamo.runtime import Context

        context = Context()
        stream = await self._decode.direct(request, worker_id, context=context)
        context.stop_generating()
        async for _ in stream:
            pass


def pass_report(metrics: Any) -> PassReport:
    """What the router reads of a ForwardPassMetrics message."""
    return PassReport(
        worker_id=int(metrics.worker_id),
        wall_time_s=float(metrics.wall_time),
        decode_requests=metrics.scheduled_requests.num_decode_requests,
        decode_kv_tokens=metrics.scheduled_requests.sum_decode_kv_tokens,
    )


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One step of a prefill engine, as its ForwardPassMetrics say; tokens."""

    unit_id: int
    step_tokens: int
    waiting_tokens: int


def prefill_step(metrics: Any) -> PrefillStep:
    """What the queues want to know of a ForwardPassMetrics message."""
    return PrefillStep(
        unit_id=unit(int(metrics.worker_id), int(metrics.dp_rank)),
        step_tokens=metrics.scheduled_requests.sum_prefill_tokens,
        waiting_tokens=metrics.queued_requests.sum_prefill_tokens,
    )


def read_cards(subscriber: Any) -> dict[int, dict[str, Any]]:
    """Model cards of an endpoint's live workers, parsed, by instance id."""
    cards: dict[int, dict[str, Any]] = {}
    for worker_id, text in subscriber.get_model_cards().items():
        try:
            cards[int(worker_id)] = json.loads(text)
        except (ValueError, TypeError) as error:
            logger.warning("router.model_card_unreadable worker=%s error=%s", worker_id, error)
    return cards


def engine_facts(card: dict[str, Any]) -> EngineFacts:
    """What the router needs to know of an engine, from its model card."""
    runtime = card.get("runtime_config") or {}
    blocks, size = runtime.get("total_kv_blocks"), card.get("kv_cache_block_size")
    kv_tokens = int(blocks) * int(size) if blocks and size else None
    budget_tokens = runtime.get("max_num_batched_tokens")
    if kv_tokens is not None and budget_tokens is not None and budget_tokens >= kv_tokens:
        # SGLang's default, say: no step computes its whole cache, so nobody has set it.
        budget_tokens = None
    data = runtime.get("runtime_data") or {}
    first = int(runtime.get("data_parallel_start_rank") or 0)
    return EngineFacts(
        kv_tokens=kv_tokens,
        budget_tokens=budget_tokens,
        chunked=bool(data.get(CHUNK_SCHEDULE)),
        ranks=range(first, first + int(runtime.get("data_parallel_size") or 1)),
    )


class WorkerCards:
    """The model cards of an endpoint's workers, followed through discovery."""

    def __init__(self, endpoint: Any) -> None:
        from dynamo.llm import FpmEventSubscriber

        self._subscriber = FpmEventSubscriber(endpoint)
        self._subscriber.start_tracking()

    def facts(self, workers: Sequence[int]) -> dict[int, EngineFacts]:
        """Of those workers whose card is there; most of the time nobody is asked about."""
        if not workers:
            return {}
        cards = read_cards(self._subscriber)
        return {w: engine_facts(cards[w]) for w in workers if w in cards}

    def close(self) -> None:
        """Stop following."""
        self._subscriber.shutdown()
