# SPDX-License-Identifier: Apache-2.0
"""The hand-over contract between a prefill and its decode leg, as the router must keep it.

Owns: what an answer to the frontend may look like, what a usable prefill result is and for how
long it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BYPASS_ANNOTATION = "x-bypass-remote-prefill"
"""Tells a decode worker to serve the request whole; its aborts then take effect at once."""


_OWN_ROUTING = (
    "backend_instance_id",
    "decode_worker_id",
    "prefill_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "decode_dp_rank",
)


@dataclass(frozen=True, slots=True)
class KvLease:
    """How long the prefill engine keeps handed-over KV, and how much of that is not used.

    Blocks of an ended lease are reused without a word: a decode leg that comes after it answers
    with another prompt's KV.
    """

    lease_s: float
    margin_s: float

    def usable(self, age_s: float) -> bool:
        """Whether a hand-over of this age may still get its decode leg."""
        return age_s < self.lease_s - self.margin_s


CHUNK_SCHEDULE = "equilibrium_chunk_schedule"
"""In a model card's `runtime_data`: the engine follows the schedule of a local answer."""
LOCAL_PREFILL = "equilibrium_local_prefill"
"""In the `disaggregated_params` of a local answer: how the decode worker shall prefill."""


def local_answer(chunks: Sequence[int] = (), decode_id: int | None = None) -> dict[str, Any]:
    """The prefill leg's answer that makes the decode worker prefill by itself.

    The frontend needs `disaggregated_params` to be present, and hands them to the decode worker;
    without `kv_transfer_params` in them that finds no KV to pull and computes the prompt.
    `chunks`: a schedule for an engine that follows it. `decode_id`: not the bound decode worker
    but this one; only a relay can heed that.
    """
    how: dict[str, Any] = {}
    if chunks:
        how["chunks"] = list(chunks)
    if decode_id is not None:
        how["decode_id"] = decode_id
    return {"token_ids": [], "disaggregated_params": {LOCAL_PREFILL: how} if how else {}}


def local_prefill(params: Any) -> dict[str, Any]:
    """How a decode worker shall prefill, from `disaggregated_params`; empty: as it likes."""
    how = params.get(LOCAL_PREFILL) if isinstance(params, dict) else None
    return how if isinstance(how, dict) else {}


def is_handover(chunk: dict[str, Any]) -> bool:
    """Whether a prefill worker's chunk carries KV that a decode worker can pull."""
    params = chunk.get("disaggregated_params")
    return isinstance(params, dict) and bool(params.get("kv_transfer_params"))


def decode_request(request: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    """The decode leg of a request whose prefill was answered with `chunk`.

    The frontend passes the prompt's cached-token details on, so the router does too. An answer
    that means "prefill locally" carries the bypass annotation: without it the engine cannot
    abort the prefill it is about to compute.
    """
    if not is_handover(chunk):
        annotations = [*(request.get("annotations") or ()), BYPASS_ANNOTATION]
        local = {**request, "annotations": annotations}
        chunks = local_prefill(chunk.get("disaggregated_params")).get("chunks")
        if chunks:
            how = {LOCAL_PREFILL: {"chunks": chunks}}
            local["prefill_result"] = {"disaggregated_params": how}
        return local
    result: dict[str, Any] = {"disaggregated_params": chunk["disaggregated_params"]}
    details = (chunk.get("completion_usage") or {}).get("prompt_tokens_details")
    if details is not None:
        result["prompt_tokens_details"] = details
    return {**request, "prefill_result": result}


def unrouted_request(request: dict[str, Any]) -> dict[str, Any]:
    """A front door's request without what names the front door's own instance and DP ranks."""
    routing = request.get("routing")
    if not routing:
        return request
    kept = {key: value for key, value in routing.items() if key not in _OWN_ROUTING}
    return {**request, "routing": kept}


def prefill_request(request: dict[str, Any]) -> dict[str, Any]:
    """The prefill leg of a request, as the stock frontend makes it: one token, the rest as is."""
    stop = {**(request.get("stop_conditions") or {}), "max_tokens": 1}
    return {**request, "stop_conditions": stop}


def release_request(request: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    """A decode leg whose only purpose is to be cancelled, which frees the prefill's blocks."""
    return prefill_request(decode_request(request, chunk))


def forwarded_request(
    request: dict[str, Any], worker_id: int, rank: int | None = None
) -> dict[str, Any]:
    """The request as the chosen prefill worker must see it; unknown fields pass untouched.

    The routing block names the router's own instance and DP ranks. `rank`: of the chosen worker,
    None where it has but one.
    """
    routing = unrouted_request(request).get("routing") or {}
    chosen = {"prefill_worker_id": worker_id}
    if rank is not None:
        chosen |= {"dp_rank": rank, "prefill_dp_rank": rank}
    return {**request, "routing": {**routing, **chosen}}


def unsupported_backend(card: dict[str, Any]) -> str | None:
    """Why a router cannot stand between the workers of this model card; None if it can.

    SGLang's prefill and decode workers meet over a bootstrap channel and are dispatched
    together: a router that waits for the prefill first would wait for ever.
    """
    endpoint = (card.get("runtime_config") or {}).get("disaggregated_endpoint") or {}
    if endpoint.get("bootstrap_host") is None and endpoint.get("bootstrap_port") is None:
        return None
    return (
        "the workers' model card names a bootstrap endpoint (SGLang): its prefill and decode legs "
        "are dispatched together, which this router does not support; leave them behind the stock "
        "frontend (router.attachment: none)"
    )
