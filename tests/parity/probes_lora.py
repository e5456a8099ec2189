# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters, loaded and unloaded at the workers while the deployment runs.

Run late and in this order: what the second probe does to stock cannot be undone.
"""

from __future__ import annotations

import asyncio
import json

from parity_rows import Row, Seen
from parity_site import MODEL, Site, text_of
from parity_worker import ADAPTER

_FOLLOWED_S = 2.5
"""Our routers ask the workers every two seconds."""

LOADED = Row(
    "LoRA adapter is loaded on every worker",
    ("listed, served by its name", "listed, not served by its name", "not listed"),
)


async def loaded(site: Site) -> Seen:
    async def listed() -> bool:
        return ADAPTER in await site.models()

    for role in ("prefill", "decode"):
        site.order(f"adapter-{role}")
    if not await site.until(listed):
        return Seen(LOADED.outcomes[2])
    answers = [await site.chat("tell<<model>>", model=name) for name in (ADAPTER, MODEL)]
    told = [json.loads(text_of(answer) or "null") for answer in answers]
    return Seen(LOADED.outcomes[0 if told == [ADAPTER, MODEL] else 1])


UNLOADED = Row(
    "LoRA adapter is unloaded, on the prefill workers first",
    (
        "no longer listed",
        "no longer listed; the model itself has lost its prefill workers",
        "still listed",
    ),
    note="in the other order stock keeps them too. Once lost, every prompt is computed by the "
    "decode workers until the frontend is started again.",
)


async def unloaded(site: Site) -> Seen:
    async def gone() -> bool:
        return ADAPTER not in await site.models()

    site.order("adapter-prefill", wanted=False)
    await asyncio.sleep(_FOLLOWED_S)
    site.order("adapter-decode", wanted=False)
    if not await site.until(gone):
        return Seen(UNLOADED.outcomes[2])
    return Seen(UNLOADED.outcomes[0 if await site.until(site.prefilled, 2.0) else 1])


PROBES = ((LOADED, loaded), (UNLOADED, unloaded))
