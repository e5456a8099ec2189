# SPDX-License-Identifier: Apache-2.0
"""The decode workers' model card, registered again as the relay's own.

The frontend tokenizes, parses tool calls and reasoning, decodes media and cuts contexts by the
card of whoever it sends to; behind a relay that is the relay's. Owns: what of a card is passed
on. Does not own: reading cards (ports.py), adapters (loras.py).

Everything that `register_model` accepts is passed on, except what describes one worker rather
than the model: DP ranks, bootstrap address, KV event settings, topology. The frontend's own
routing between relays is fixed to round robin, whatever mode it runs in (1.4.2: `router_config`
of the card). A custom chat template must be readable for the router under the worker's path.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from controller.errors import UserError
from controller.estimation.roster import ROUTER_MARK

logger = logging.getLogger(__name__)

_OF_ONE_WORKER = frozenset(
    {
        "bootstrap_host",
        "bootstrap_port",
        "data_parallel_size",
        "data_parallel_start_rank",
        "enable_eagle",
        "enable_local_indexer",
        "kv_event_publishing_enabled",
        "kv_state_endpoint",
        "kv_transfer_domain",
        "kv_transfer_enforcement",
        "kv_transfer_preferred_weight",
        "stable_routing_id",
        "taints",
        "topology_domains",
    }
)


async def register_front_door(
    endpoint: Any, model: str, card: dict[str, Any], session_affinity_ttl_s: int | None = None
) -> None:
    """Register `endpoint` as the model's Aggregated worker; UserError where that cannot be."""
    from dynamo.llm import ModelInput, RouterConfig, RouterMode, WorkerType, register_model

    if card.get("model_input", "Tokens") != "Tokens":
        raise UserError(
            f"the decode workers take {card['model_input']}, not tokens: the relay cannot place "
            "or migrate what it cannot count; use router.attachment: broker or none"
        )
    await register_model(
        ModelInput.Tokens,
        surfaces(card),
        endpoint,
        card.get("source_path") or model,
        card.get("display_name") or model,
        worker_type=WorkerType.Aggregated,
        router_config=RouterConfig(
            RouterMode.RoundRobin, session_affinity_ttl_secs=session_affinity_ttl_s
        ),
        runtime_config=runtime_config(card),
        ignore_weights=True,
        **_optional(card),
    )


def surfaces(card: dict[str, Any]) -> Any:
    """The OpenAI surfaces, as a ModelType: `Chat | Completions` of the card."""
    from dynamo.llm import ModelType

    names = [name.strip() for name in str(card.get("model_type") or "").split("|")]
    known = [getattr(ModelType, name) for name in names if hasattr(ModelType, name)]
    if not known:
        return ModelType.Chat | ModelType.Completions
    whole = known[0]
    for surface in known[1:]:
        whole = whole | surface
    return whole


def runtime_config(card: dict[str, Any], only: Collection[str] | None = None) -> Any:
    """The card's runtime configuration, without what describes one worker; `only` these fields."""
    from dynamo.llm import ModelRuntimeConfig

    mirrored = ModelRuntimeConfig()
    theirs = card.get("runtime_config") or {}
    for name, value in theirs.items():
        if name in _OF_ONE_WORKER or value is None or (only is not None and name not in only):
            continue
        if hasattr(mirrored, f"set_{name}"):  # the structural tags have setters only
            getattr(mirrored, f"set_{name}")(value)
        elif name != "runtime_data" and hasattr(ModelRuntimeConfig, name):
            setattr(mirrored, name, value)
    if only is not None:
        return mirrored
    for name, value in (theirs.get("runtime_data") or {}).items():
        mirrored.set_engine_specific(name, json.dumps(value))
    mirrored.set_engine_specific(ROUTER_MARK, json.dumps(True))
    if mirrored.context_length is None:
        mirrored.context_length = card.get("context_length")
    return mirrored


def _optional(card: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for what not every card has."""
    optional: dict[str, Any] = {
        "kv_cache_block_size": card.get("kv_cache_block_size"),
        "user_data": card.get("user_data"),
        "custom_template_path": _template(card),
        "media_decoder": _media_decoder(card.get("media_decoder")),
        "media_fetcher": _media_fetcher(card.get("media_fetcher")),
        "max_gpu_lora_count": (card.get("runtime_config") or {}).get("max_gpu_lora_count"),
        "model_aliases": card.get("aliases"),
    }
    return {name: value for name, value in optional.items() if value}


def _template(card: dict[str, Any]) -> str | None:
    template = (card.get("chat_template_file") or {}).get("hf_chat_template") or {}
    if not template.get("is_custom"):
        return None
    path = str((template.get("file") or {}).get("path"))
    if not Path(path).is_file():
        raise UserError(
            f"the decode workers use the chat template {path}, which the router cannot read; "
            "make it available here under the same path"
        )
    return path


def _media_decoder(theirs: dict[str, Any] | None) -> Any:
    from dynamo.llm import MediaDecoder

    if not theirs:
        return None
    decoder = MediaDecoder()
    for kind, options in theirs.items():
        enable = getattr(decoder, f"enable_{kind}", None)
        if enable is None:
            logger.warning("router.media_not_mirrored kind=%s", kind)
        elif options is not None:
            enable(_without_none(options))
    return decoder


def _media_fetcher(theirs: dict[str, Any] | None) -> Any:
    from dynamo.llm import MediaFetcher

    if not theirs:
        return None
    fetcher = MediaFetcher()
    for name in ("user_agent", "allow_direct_ip", "allow_direct_port", "allowed_media_domains"):
        if theirs.get(name) is not None:
            getattr(fetcher, name)(theirs[name])
    timeout = theirs.get("timeout")
    if timeout:
        fetcher.timeout_ms(timeout["secs"] * 1000 + timeout["nanos"] // 1_000_000)
    return fetcher


def _without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
