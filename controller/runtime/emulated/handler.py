# SPDX-License-Identifier: Apache-2.0
"""The `generate` endpoint of an emulated worker: prefill leg, decode leg, or both at once.

Owns: what a real worker does around its engine: choices (n), deferred aborts, the hand-over
handle, usage. Does not own: registration (serve.py), timing (worker.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Protocol

from controller.engine import EngineRequest, FinishReason
from controller.runtime.emulated import protocol
from controller.runtime.emulated.content import Answer, block_contents
from controller.runtime.emulated.side_channel import Peer
from controller.runtime.emulated.worker import EmulatedWorker, KvSource


class RequestContext(Protocol):
    """The part of dynamo.runtime.Context that a worker needs."""

    def id(self) -> str: ...

    def is_stopped(self) -> bool: ...

    def async_killed_or_stopped(self) -> Any: ...


class PromptStore(Protocol):
    """Keeps the token ids of live prompts for the KV events (publishers.CachePublisher)."""

    def note_prompt(self, request_id: str, token_ids: Sequence[int]) -> None: ...

    def forget_prompt(self, request_id: str) -> None: ...


class Handler:
    """Serves one worker; `role` is `prefill` or `decode`."""

    def __init__(
        self,
        worker: EmulatedWorker,
        role: str,
        block_size: int,
        context_length: int,
        side_channel: Peer,
        vocabulary: Sequence[int],
        prompts: PromptStore,
    ) -> None:
        self._worker = worker
        self._role = role
        self._block_size = block_size
        self._context_length = context_length
        self._side_channel = side_channel
        self._vocabulary = vocabulary
        self._prompts = prompts

    async def generate(
        self, request: dict[str, Any], context: RequestContext
    ) -> AsyncIterator[dict[str, Any]]:
        """Dynamo's request handler: yields chunk dictionaries."""
        parsed = protocol.parse_request(request, self._context_length)
        # The frontend reuses a request's id when it migrates a stream: ours must differ.
        base_id = f"{context.id()}-{uuid.uuid4().hex[:8]}"
        chunks: asyncio.Queue[dict[str, Any] | BaseException | None] = asyncio.Queue()
        choices = [
            asyncio.create_task(self._choice(parsed, base_id, index, chunks))
            for index in range(parsed.sequences)
        ]
        stopped = asyncio.ensure_future(self._on_stop(parsed, context, base_id))
        try:
            for _ in range(parsed.sequences):
                while (item := await chunks.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
        finally:
            stopped.cancel()
            for choice in choices:
                choice.cancel()
            await asyncio.gather(stopped, *choices, return_exceptions=True)

    async def _choice(
        self,
        parsed: protocol.GenerateRequest,
        base_id: str,
        index: int,
        chunks: asyncio.Queue[dict[str, Any] | BaseException | None],
    ) -> None:
        try:
            sequence = self._sequence(parsed, f"{base_id}/{index}", index)
            async with contextlib.aclosing(sequence):
                async for chunk in sequence:
                    chunks.put_nowait(chunk)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            chunks.put_nowait(error)
        finally:
            chunks.put_nowait(None)

    async def _sequence(
        self, parsed: protocol.GenerateRequest, request_id: str, index: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        self._prompts.note_prompt(request_id, parsed.token_ids)
        try:
            async with contextlib.aclosing(self._chunks(parsed, request_id, index)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._prompts.forget_prompt(request_id)

    async def _chunks(
        self, parsed: protocol.GenerateRequest, request_id: str, index: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        prefill = self._role == "prefill"
        source = None if prefill else parsed.source
        request = EngineRequest(
            request_id=request_id,
            prompt_tokens=len(parsed.token_ids),
            max_output_tokens=1 if prefill else parsed.max_tokens,
            contents=block_contents(parsed.token_ids, self._block_size),
            hold_kv=prefill,
            pull_kv=source is not None,
            chunks=() if prefill or source is not None else parsed.chunks,
        )
        answer: Answer | None = None
        sent = 0
        async with contextlib.aclosing(self._worker.generate(request, source)) as outputs:
            async for output in outputs:
                if output.finish is FinishReason.KV_LOAD_FAILED:
                    yield {
                        "token_ids": [],
                        "index": index,
                        "finish_reason": "error: KV load failed",
                    }
                    return
                if answer is None:
                    answer = self._answer(parsed, request_id, index)
                tokens = [answer.next_token() for _ in range(output.tokens)]
                sent += len(tokens)
                chunk = protocol.token_chunk(tokens, index)
                if output.finish is not None:
                    chunk["finish_reason"] = "length"
                    chunk["completion_usage"] = protocol.usage(
                        len(parsed.token_ids), sent, output.cached_tokens
                    )
                    if prefill:
                        chunk["disaggregated_params"] = self._handle(request_id)
                yield chunk

    def _answer(self, parsed: protocol.GenerateRequest, request_id: str, index: int) -> Answer:
        # Choices of one prompt differ, as samples do; choice 0 is the greedy one.
        kv_damage = self._worker.kv_damage(request_id) ^ index
        return Answer(parsed.token_ids, self._block_size, self._vocabulary, kv_damage)

    def _handle(self, request_id: str) -> dict[str, Any]:
        blocks = self._worker.pinned_blocks(request_id)
        return protocol.handover(
            KvSource(self._side_channel, self._worker.engine_id, request_id, blocks)
        )

    async def _on_stop(
        self,
        parsed: protocol.GenerateRequest,
        context: RequestContext,
        base_id: str,
    ) -> None:
        await context.async_killed_or_stopped()
        if self._role == "decode" and not parsed.bypass:
            # A decode worker cannot abort before the first token, since a
            # KV transfer may be under way; only the bypass annotation lifts that.
            for index in range(parsed.sequences):
                await self._worker.first_token(f"{base_id}/{index}")
        for index in range(parsed.sequences):
            self._worker.abort(f"{base_id}/{index}")
