# SPDX-License-Identifier: Apache-2.0
"""What several conformance tests do, with and without the rule under test."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from conformance_live import Live, make_prompt, make_request, tokens_of
from conformance_router import Router
from dynamo.runtime import Context


async def local_prefill_cancelled(live: Live) -> tuple[float, float]:
    """Seconds of a long local prefill, and of a short request right after a cancelled one."""
    router = Router(live, "always_local")
    length = live.kind.long_local_tokens
    started = time.monotonic()
    await router.serve(make_request(live.prompt(length), 1), Context())
    whole_s = time.monotonic() - started
    context = Context()
    long = asyncio.create_task(router.serve(make_request(live.prompt(length), 1), context))
    await asyncio.sleep(0.1 * whole_s)
    context.stop_generating()
    started = time.monotonic()
    await router.serve(make_request(live.prompt(20), 1), Context())
    after_s = time.monotonic() - started
    await asyncio.wait({long})
    return whole_s, after_s


async def cancel_at_random(live: Live, router: Router, count: int) -> Counter[str]:
    """`count` small requests, most of them cancelled at a random moment of their life."""
    rng = random.Random(count)
    limit = asyncio.Semaphore(4 if live.kind.real else 32)
    longest_s = live.kind.request_s
    ended: Counter[str] = Counter()

    async def one(tokens: int, max_tokens: int, delay_s: float) -> None:
        async with limit:
            context = Context()
            request = make_request(make_prompt(rng, tokens), max_tokens)
            task = asyncio.create_task(router.serve(request, context))
            await asyncio.wait({task}, timeout=delay_s)
            context.stop_generating()
            await asyncio.wait({task})
            if task.exception() is not None:
                ended["error"] += 1
                ended[repr(task.exception())] += 1
            else:
                whole = len(tokens_of(task.result())) == max_tokens
                ended["whole" if whole else "cancelled"] += 1

    await asyncio.gather(
        *(
            one(rng.randint(1, 250), rng.randint(2, 20), rng.random() * longest_s)
            for _ in range(count)
        )
    )
    return ended


async def cancelled_as_answered(live: Live, router: Router, serve: str) -> None:
    """A request whose client leaves in the instant in which its prefill's answer arrives."""
    context = Context()
    task = asyncio.create_task(getattr(router, serve)(make_request(live.prompt()), context))
    router.port.on_answer = context.stop_generating if serve == "serve" else task.cancel
    await asyncio.wait({task}, timeout=live.kind.timeout_s)
    assert task.cancelled() or tokens_of(task.result()) == []
