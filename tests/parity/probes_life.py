# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, workers that die and come back. These probes run last, in this order."""

from __future__ import annotations

import asyncio

import aiohttp
from parity_rows import Row, Seen
from parity_site import LEASE_S, MODEL, Answer, Site, statuses, text_of

_SOON_S = 1.0
_STREAMS, _TOKENS = 20, 200
_PROMPT = "tell me about queues " * 40

LEFT_DECODING = Row(
    "Client leaves while its answer streams", ("freed at once", "not freed at once")
)


async def left_decoding(site: Site) -> Seen:
    await site.free_within(LEASE_S + 1)
    # The whole answers would take the engines half a minute.
    await asyncio.gather(
        *(site.leave(f"{i} {_PROMPT}", 0.6 + i / 20, max_tokens=4000) for i in range(6))
    )
    freed = await site.free_within(_SOON_S)
    return Seen(LEFT_DECODING.outcomes[0 if freed else 1])


LEFT_PREFILLING = Row(
    "Client leaves while a prefill worker computes its prompt",
    (
        "blocks freed when the prefill has ended",
        "blocks freed when the KV lease ends",
        "blocks not freed",
    ),
)


async def left_prefilling(site: Site) -> Seen:
    async def computed() -> bool:
        return not await site.prefill_runs()

    client = asyncio.create_task(site.leave("y" * 30_000, 30.0))
    met = await site.until(site.prefill_runs, 5.0, 0.02)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    if not met or await computed():
        return Seen("the prefill was not met")
    await site.until(computed, 20.0, 0.02)
    for outcome, patience_s in zip(LEFT_PREFILLING.outcomes, (_SOON_S, LEASE_S + 1), strict=False):
        if await site.free_within(patience_s):
            return Seen(outcome)
    return Seen(LEFT_PREFILLING.outcomes[2])


def whole(answer: Answer) -> bool:
    """A stream that has all its tokens and its end."""
    return answer[0] == 200 and len(text_of(answer) or "") == _TOKENS and answer[1][-1] == "[DONE]"


async def streams_with_a_death(site: Site, victim: str | None, streams: int) -> list[Answer]:
    """Streams that are decoding when a process is killed."""
    running = [
        asyncio.create_task(_stream(site, f"{victim} {number} {_PROMPT}"))
        for number in range(streams)
    ]
    await asyncio.sleep(1.2)
    if victim is not None:
        await site.kill(victim)
    return await asyncio.wait_for(asyncio.gather(*running), 25)


async def _stream(site: Site, content: str) -> Answer:
    try:
        return await site.chat(content, max_tokens=_TOKENS, stream=True)
    except aiohttp.ClientError:  # cut off in mid-stream
        return 0, []


_SAVED = _STREAMS - 2
MIGRATION = Row(
    f"A decode worker is killed under {_STREAMS} streams (`--migration-limit 3`)",
    (f"{_SAVED} or more are saved", f"fewer than {_SAVED} are saved"),
    note="stock's own migration, which a broker leaves in charge, now and then loses a stream "
    "(`Request ... already exists` in the frontend's log). A relay saves every one: "
    "`tests/e2e/test_e2e_relay.py`.",
)


async def migration(site: Site) -> Seen:
    answers = await streams_with_a_death(site, "decode-0", _STREAMS)
    return Seen(MIGRATION.outcomes[0 if sum(map(whole, answers)) >= _SAVED else 1])


PREFILL_GONE = Row(
    "The last prefill worker is killed",
    (
        "listed, served: the decode workers prefill",
        "listed, not served",
        "not listed, not served",
    ),
)


async def prefill_gone(site: Site) -> Seen:
    await site.kill("prefill-0")
    await asyncio.sleep(_SOON_S)
    return Seen(PREFILL_GONE.outcomes[await _served(site)])


async def _served(site: Site) -> int:
    """0: listed and served; 1: listed only; 2: neither."""
    status, _ = await site.chat("is anybody there?", max_tokens=4)
    if status == 200:
        return 0
    return 1 if MODEL in await site.models() else 2


PREFILL_BACK = Row(
    "A prefill worker comes back", ("listed, served, and it prefills", "it is not used")
)


async def prefill_back(site: Site) -> Seen:
    async def used() -> bool:
        return await site.prefilled() and MODEL in await site.models()

    site.order("start-prefill")
    return Seen(PREFILL_BACK.outcomes[0 if await site.until(used) else 1])


DECODE_GONE = Row(
    "The last decode worker is killed",
    ("not listed; HTTP 503", "listed; HTTP 503", "not listed; HTTP 404", "listed; HTTP 500"),
    {"relay": "the front door stays; a client gets the same answer"},
)


async def decode_gone(site: Site) -> Seen:
    await site.kill("decode-1")
    await asyncio.sleep(_SOON_S)
    status, _ = await site.chat("is anybody there?", max_tokens=4)
    listed = "listed" if MODEL in await site.models() else "not listed"
    return Seen(f"{listed}; HTTP {status}")


DECODE_BACK = Row("A decode worker comes back", ("listed and served", "not served"))


async def decode_back(site: Site) -> Seen:
    async def served() -> bool:
        return await _served(site) == 0

    site.order("start-decode")
    return Seen(DECODE_BACK.outcomes[0 if await site.until(served) else 1])


ROUTER_GONE = Row(
    "The router itself is killed under 6 streams (stock has none)",
    ("every stream goes on", "streams are cut"),
    {"relay": "every chunk passes through it"},
)


async def router_gone(site: Site) -> Seen:
    victim = "router" if site.has("router") else None
    answers = await streams_with_a_death(site, victim, 6)
    return Seen(ROUTER_GONE.outcomes[0 if all(map(whole, answers)) else 1])


_ONE_PROCESS = "it is a single process, which the launcher starts again within seconds"
ROUTER_AWAY = Row(
    "New requests until that router has been started again",
    ("served", "refused (HTTP 503)", "refused, and never served again"),
    {"broker": _ONE_PROCESS, "relay": _ONE_PROCESS},
)


async def router_away(site: Site) -> Seen:
    """Right after the probe above."""

    async def served() -> bool:
        return (await site.chat("is anybody there?", max_tokens=2))[0] == 200

    answers = [await site.chat(f"{number} is anybody there?", max_tokens=2) for number in range(3)]
    if {status for status, _ in answers} == {200}:
        return Seen(ROUTER_AWAY.outcomes[0])
    again = await site.until(served)
    return Seen(f"refused ({statuses(answers)})" if again else ROUTER_AWAY.outcomes[2])


PROBES = (
    (LEFT_DECODING, left_decoding),
    (LEFT_PREFILLING, left_prefilling),
    (MIGRATION, migration),
    (PREFILL_GONE, prefill_gone),
    (PREFILL_BACK, prefill_back),
    (DECODE_GONE, decode_gone),
    (DECODE_BACK, decode_back),
)
LAST = ((ROUTER_GONE, router_gone), (ROUTER_AWAY, router_away))
