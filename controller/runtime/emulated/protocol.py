# SPDX-License-Identifier: Apache-2.0
"""Dynamo's request and chunk dictionaries, as dynamo.vllm speaks them (1.4.2 to 1.6.x).

Owns: translating between them and the engine's values. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.runtime.emulated.side_channel import Peer
from controller.runtime.emulated.worker import KvSource
from controller.runtime.router.handover import BYPASS_ANNOTATION, local_prefill

DEFAULT_OUTPUT_TOKENS = 64
"""Length of an answer whose request names none (the emulated model never ends by itself)."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the emulated engine reads from a request; everything else is ignored."""

    token_ids: tuple[int, ...]
    max_tokens: int
    sequences: int
    bypass: bool
    source: KvSource | None
    chunks: tuple[int, ...] = ()
    """Most prompt tokens in its first, second, ... step; empty: no cap."""


def parse_request(request: dict[str, Any], context_length: int) -> GenerateRequest:
    """Read a preprocessed request. Raises ValueError for an empty or oversized prompt."""
    token_ids = tuple(request.get("token_ids") or ())
    if not token_ids:
        raise ValueError("request has no token_ids")
    if len(token_ids) >= context_length:
        raise ValueError(
            f"prompt of {len(token_ids)} tokens exceeds the context length {context_length}"
        )
    wanted = (request.get("stop_conditions") or {}).get("max_tokens")
    limit = context_length - len(token_ids)
    return GenerateRequest(
        token_ids=token_ids,
        max_tokens=max(1, min(int(wanted or DEFAULT_OUTPUT_TOKENS), limit)),
        sequences=int((request.get("sampling_options") or {}).get("n") or 1),
        bypass=BYPASS_ANNOTATION in (request.get("annotations") or ()),
        source=_source(request),
        chunks=_chunks(request),
    )


def _source(request: dict[str, Any]) -> KvSource | None:
    result = request.get("prefill_result")
    params = (result or {}).get("disaggregated_params") or {}
    transfer = params.get("kv_transfer_params")
    if not transfer:
        return None
    return KvSource(
        peer=Peer(str(transfer["remote_host"]), int(transfer["remote_port"])),
        engine_id=str(transfer["remote_engine_id"]),
        request_id=str(transfer["remote_request_id"]),
        block_ids=tuple(transfer["remote_block_ids"]),
    )


def _chunks(request: dict[str, Any]) -> tuple[int, ...]:
    params = (request.get("prefill_result") or {}).get("disaggregated_params")
    return tuple(max(1, int(tokens)) for tokens in local_prefill(params).get("chunks") or ())


def handover(source: KvSource) -> dict[str, Any]:
    """`disaggregated_params` of a finished prefill, keys as vLLM's NIXL connector names them."""
    return {
        "kv_transfer_params": {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": source.engine_id,
            "remote_request_id": source.request_id,
            "remote_block_ids": list(source.block_ids),
            "remote_host": source.peer.host,
            "remote_port": source.peer.port,
        }
    }


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """`completion_usage` of a last chunk."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def token_chunk(token_ids: Sequence[int], index: int) -> dict[str, Any]:
    """A chunk of generated tokens of choice `index`."""
    return {"token_ids": list(token_ids), "index": index}
