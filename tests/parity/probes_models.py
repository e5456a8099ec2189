# SPDX-License-Identifier: Apache-2.0
"""What is served beside the model itself: aliases, other models; sessions; health."""

from __future__ import annotations

import asyncio

from parity_others import EMBEDDER, EMBEDDER_IN_KV_MODE, OTHER
from parity_rows import Row, Seen
from parity_site import Site, text_of
from parity_worker import ALIAS

ALIASES = Row("Alias of the model", ("listed and served", "not served"))


async def aliases(site: Site) -> Seen:
    status, _ = await site.chat("hello", model=ALIAS)
    good = status == 200 and ALIAS in await site.models()
    return Seen(ALIASES.outcomes[0 if good else 1])


SECOND = Row("Another model with pools of its own", ("listed and served", "not served"))


async def second(site: Site) -> Seen:
    answer = await site.chat("hello", model=OTHER)
    good = text_of(answer) == "other" and OTHER in await site.models()
    return Seen(SECOND.outcomes[0 if good else 1], answer)


EMBEDDINGS = Row(
    "Embeddings model whose card asks for round robin", ("listed and served", "not served")
)
EMBEDDINGS_IN_KV_MODE = Row(
    "Embeddings model whose card leaves the routing to the frontend",
    ("listed and served", "listed; HTTP 500"),
    note="a frontend (1.4.2) in router mode `kv` refuses every embeddings request; before relays "
    "it runs in round robin.",
)


async def embeddings(site: Site, model: str = EMBEDDER) -> Seen:
    answer = await site.post("/v1/embeddings", {"model": model, "input": ["queue", "who"]})
    vectors = [entry["embedding"] for entry in answer[1].get("data", ())]
    listed = "listed" if model in await site.models() else "not listed"
    if vectors != [[5.0, 1.0], [3.0, 0.0]]:
        return Seen(f"{listed}; HTTP {answer[0]}")
    return Seen(f"{listed} and served", answer)


async def embeddings_in_kv_mode(site: Site) -> Seen:
    return await embeddings(site, EMBEDDER_IN_KV_MODE)


AFFINITY = Row(
    "Session affinity (`--router-session-affinity-ttl-secs`, header)",
    ("a session's rounds share one decode worker, sessions are spread", "not kept"),
)
_SESSIONS, _ROUNDS = 10, 3


async def affinity(site: Site) -> Seen:
    async def conversation(number: int) -> set[str | None]:
        workers = set()
        for turn in range(_ROUNDS):
            content = f"tell<<worker>> {number} " + "and so on " * 40 * (turn + 1)
            answer = await site.chat(content, session=f"session-{number}", max_tokens=20)
            workers.add(text_of(answer))
        return workers

    seen = await asyncio.gather(*map(conversation, range(_SESSIONS)))
    kept = all(len(workers) == 1 for workers in seen)
    spread = len(set().union(*seen)) == 2
    return Seen(AFFINITY.outcomes[0 if kept and spread else 1])


HEALTH = Row("`/health` and `/live`", ("healthy", "not healthy"))


async def health(site: Site) -> Seen:
    answers = [await site.get(path) for path in ("/health", "/live")]
    good = [status for status, _ in answers] == [200, 200]
    good = good and answers[0][1]["status"] == "healthy"
    return Seen(HEALTH.outcomes[0 if good else 1])


PROBES = (
    (ALIASES, aliases),
    (SECOND, second),
    (EMBEDDINGS, embeddings),
    (EMBEDDINGS_IN_KV_MODE, embeddings_in_kv_mode),
    (HEALTH, health),
)
# Not right after a long prompt: for two seconds a relay believes its decode worker loaded.
LATER = ((AFFINITY, affinity),)
