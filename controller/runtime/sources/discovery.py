# SPDX-License-Identifier: Apache-2.0
"""Who is registered: a frontend's `/health`, and the model cards of file discovery.

Owns: reading both. Does not own: the join (controller.estimation.roster). Without the folder (etcd,
Kubernetes) roles come from the frontend's own labels, which say them on 1.4.2 and 1.6.x.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from controller.estimation.estimate import Discovered
from controller.estimation.roster import from_cards, from_instances


async def discover(
    http: aiohttp.ClientSession, url: str | None, file_kv: Path | None, timeout_s: float = 4.0
) -> tuple[Discovered, str | None]:
    """The live set, and why it is not complete (None when it is)."""
    cards = from_cards(read_cards(file_kv)) if file_kv is not None else ()
    if url is None:
        why = None if file_kv is not None else "neither a frontend nor a discovery folder is named"
        return Discovered(cards, complete=file_kv is not None and bool(cards)), why
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with http.get(f"{url.rstrip('/')}/health", timeout=timeout) as response:
            health = json.loads(await response.text())
        instances = health.get("instances")
        if not isinstance(instances, list):
            raise ValueError("no list of instances in it")
    except (
        aiohttp.ClientError,
        OSError,
        asyncio.TimeoutError,
        ValueError,
        AttributeError,
    ) as error:
        return Discovered(cards, complete=False), f"{url}/health: {error or type(error).__name__}"
    listed = from_instances([each for each in instances if isinstance(each, dict)])
    live = {each.worker_id for each in listed}
    # A card outlives a killed worker by its lease; what the frontend lists counts.
    return Discovered((*(c for c in cards if c.worker_id in live), *listed), complete=True), None


def read_cards(folder: Path) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """(instance, namespace, component, card) of every worker in a folder of file discovery.

    What cannot be read is passed over: entries come and go while they are listed.
    """
    try:
        entries = sorted((folder / "v1" / "mdc").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            raw = json.loads(entry.read_text(encoding="utf-8"))
            card = raw["card_json"]
            yield int(raw["instance_id"]), str(raw["namespace"]), str(raw["component"]), dict(card)
        except (OSError, ValueError, KeyError, TypeError):
            continue
