# SPDX-License-Identifier: Apache-2.0
"""Broken on purpose: with one rule of docs/handover.md switched off, its check must fail.

Each test does what a test of test_conformance_handover.py does, and sees the opposite.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from conformance_checks import cancelled_as_answered, local_prefill_cancelled
from conformance_live import (
    EMULATED,
    MODEL,
    Live,
    idle,
    live_deployment,
    make_config,
    make_request,
    tokens_of,
)
from conformance_router import Freeze, Router
from dynamo.runtime import Context

from controller.runtime.dynamo_io import make_runtime
from controller.runtime.emulated.serve import EmulatedService
from controller.runtime.launcher import Deployment
from controller.runtime.router import broker, core, handover, remote
from controller.runtime.router.handover import KvLease, prefill_request

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

# A short lease: what these tests leave pinned is soon gone.
KIND = dataclasses.replace(EMULATED, lease_s=3.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with live_deployment(KIND, tmp_path_factory.mktemp("broken")) as live:
        yield live


@pytest_asyncio.fixture(loop_scope="module")
async def live(module_live: Live) -> AsyncIterator[Live]:
    """Every test finds an engine that is free, whatever the one before left pinned."""
    yield module_live
    loads = await module_live.wait_for_loads(idle, 3 * KIND.lease_s)
    assert all(map(idle, loads.values()))


async def test_without_the_release_blocks_stay_pinned(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(live)

    async def nothing(request: dict[str, Any], chunk: dict[str, Any]) -> None: ...

    monkeypatch.setattr(router.port, "release", nothing)
    await cancelled_as_answered(live, router, "serve")
    assert not await live.engine_is_free()


async def test_without_the_age_rule_a_frozen_router_answers_wrongly(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvLease, "usable", lambda lease, age_s: True)
    router = Router(live)
    router.port.on_answer = Freeze(live)
    request = make_request(live.prompt())
    tokens = tokens_of(await router.serve(request, Context()))
    assert len(router.port.sent) == 1
    assert len(tokens) == 8
    assert tokens != await live.cold(request)


async def test_several_sequences_placed_remotely_leave_blocks_pinned(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "decide", lambda rule, task, view: rule.place(task, view))
    router = Router(live)
    request = make_request(live.prompt())
    request["sampling_options"] = {"temperature": 0.0, "n": 2}
    await router.serve(request, Context())
    assert not await live.engine_is_free()


async def test_without_the_annotation_a_cancelled_local_prefill_keeps_the_worker(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "BYPASS_ANNOTATION", "x-nothing")
    whole_s, after_s = await local_prefill_cancelled(live)
    assert after_s > 0.6 * whole_s


async def test_another_prompts_handover_gives_other_tokens(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that mixes two requests' answers up."""
    answers = [(await live.prefill_leg(make_request(live.prompt())))[0]]
    real = handover.decode_request
    monkeypatch.setattr(
        "controller.runtime.router.prefill_leg.decode_request",
        lambda request, chunk: real(request, answers.pop()),
    )
    request = make_request(live.prompt())
    tokens = tokens_of(await Router(live).serve(request, Context()))
    assert tokens != await live.cold(request)


async def test_without_the_rank_rule_a_worker_sees_the_routers_own_routing(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(live.prompt(), routing={"prefill_worker_id": 7, "prefill_dp_rank": 3})
    for rule_is_on in (True, False):
        if not rule_is_on:
            monkeypatch.setattr(remote, "forwarded_request", lambda request, *where: request)
        router = Router(live)
        (answer,) = await router.prefill(request, Context())
        await live.release(request, answer)
        own = router.port.sent[0]["routing"]
        assert (own == {"prefill_worker_id": 7, "prefill_dp_rank": 3}) is not rule_is_on


class _Useless:
    """A prefill worker whose answers carry no hand-over."""

    def __init__(self, chunk: dict[str, Any]) -> None:
        self._chunk = chunk

    def live(self) -> tuple[int, ...]:
        return (1,)

    def rank(self, unit_id: int) -> int | None:
        return None

    async def cached_tokens(self, token_ids: list[int]) -> dict[int, int]:
        return {}

    def open(self, worker_id: int, request: dict[str, Any], context: Any) -> _Useless:
        return self

    def stop(self) -> None: ...

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        yield self._chunk

    async def release(self, request: dict[str, Any], chunk: dict[str, Any]) -> None: ...


async def test_an_unusable_answer_that_is_passed_on_spoils_the_request(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(live)
    useless = {"token_ids": [97]}
    # The frontend refuses an answer without a hand-over; but one that names a reason to finish,
    # an error even, it takes for the client's whole answer.
    finished = ({**useless, "finish_reason": reason} for reason in ("stop", "error: no room"))
    async with _frontend_of(live, router, tmp_path) as url:
        for chunk, spoilt in (useless, (500, None)), *((chunk, (200, 1)) for chunk in finished):
            for part in (router.core, router.core._remote):
                monkeypatch.setattr(part, "_port", _Useless(chunk))
            assert await _answer(url) == (200, 4)
            with monkeypatch.context() as patch:
                patch.setattr(remote, "is_handover", lambda chunk: True)
                assert await _answer(url) == spoilt


async def _answer(url: str) -> tuple[int, int | None]:
    """Status, and the number of tokens; four are asked for."""
    body = {"model": MODEL, "prompt": "is anybody there?", "max_tokens": 4}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/completions", json=body) as it:
        usage = (await it.json()).get("usage") or {}
        return it.status, usage.get("completion_tokens")


@contextlib.asynccontextmanager
async def _frontend_of(live: Live, router: Router, folder: Path) -> AsyncIterator[str]:
    """A stock frontend in front of the core in this process and the deployment's decode worker."""
    config = make_config(
        KIND,
        folder,
        router__attachment="none",
        dynamo__namespace="odd",
        dynamo__file_kv=str(live.deployment.run_dir / "discovery"),
        prefill__engine="external",
        decode__engine="external",
    )

    async def prefill(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        async for chunk in router.core.prefill(prefill_request(request), context.id(), context):
            yield chunk

    async def decode(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        for chunk in await live.decode_leg(request):
            yield chunk

    front = make_runtime(config.dynamo)
    back = EmulatedService(config, "decode", "decode-odd", folder)
    serving: list[asyncio.Future[Any]] = []
    try:
        endpoint = front.endpoint(config.prefill_endpoint)
        card = {"runtime_config": {"total_kv_blocks": live.prefill_blocks}}
        await broker._register(endpoint, MODEL, live.block_size, card)
        await back._register(config.decode.emulated)
        for served, handler in ((endpoint, prefill), (back._endpoint, decode)):
            serving.append(asyncio.ensure_future(served.serve_endpoint(handler)))
        async with Deployment.start(config) as deployment:
            yield deployment.url
    finally:
        front.shutdown()
        back.shutdown()
        await asyncio.gather(*serving, return_exceptions=True)
