# SPDX-License-Identifier: Apache-2.0
"""The hand-over contract between a prefill and its decode leg, as the router must keep it.

Owns: what an answer to the frontend may look like, and what a usable prefill result is.
"""

from __future__ import annotations

from typing import Any


def local_answer() -> dict[str, Any]:
    """The prefill leg's answer that makes the decode worker prefill by itself.

    The frontend needs `disaggregated_params` to be present; without `kv_transfer_params` in it
    the decode worker finds no KV to pull and computes the prompt.
    """
    return {"token_ids": [], "disaggregated_params": {}}


def is_handover(chunk: dict[str, Any]) -> bool:
    """Whether a prefill worker's chunk carries KV that a decode worker can pull."""
    params = chunk.get("disaggregated_params")
    return isinstance(params, dict) and bool(params.get("kv_transfer_params"))


def forwarded_request(request: dict[str, Any], worker_id: int) -> dict[str, Any]:
    """The request as the chosen prefill worker must see it; unknown fields pass untouched.

    The routing block names the router's own instance and DP rank, which mean nothing to the
    worker behind it.
    """
    routing = dict(request.get("routing") or {})
    routing["prefill_worker_id"] = worker_id
    for rank in ("dp_rank", "prefill_dp_rank"):
        if routing.get(rank) is not None:
            routing[rank] = 0
    return {**request, "routing": routing}
