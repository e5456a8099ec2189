# SPDX-License-Identifier: Apache-2.0
"""Deployments of the conformance tests, one a module: a real engine takes minutes to load."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from conformance_http import Answer, ask_all, warm_up
from conformance_live import KINDS, Kind, Live, live_deployment, make_config, real_python

from controller.runtime.launcher import Deployment

ENGINES = [
    pytest.param("emulated", marks=pytest.mark.e2e),
    pytest.param("vllm", marks=[pytest.mark.real_engine, pytest.mark.timeout(1200)]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def kind(request: pytest.FixtureRequest) -> Kind:
    """The engine under test."""
    kind = KINDS[request.param]
    if kind.real and not real_python().exists():
        pytest.skip(f"{real_python()} does not exist (EQUILIBRIUM_REAL_ENGINE)")
    return kind


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stock_answers(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What a deployment without our router answers. It is down again when this returns."""
    config = make_config(kind, tmp_path_factory.mktemp("stock"), router__attachment="none")
    async with Deployment.start(config) as deployment:
        if kind.real:
            await warm_up(deployment.url, kind.timeout_s)
        return await ask_all(deployment.url, kind.timeout_s)


@pytest.fixture(scope="module")
def stock_first(request: pytest.FixtureRequest, kind: Kind) -> None:
    """Stock's turn comes before ours: two real deployments do not fit on one machine."""
    if any("stock_answers" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("stock_answers")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    kind: Kind,
    stock_first: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Live]:
    """Behind a broker that places everything remotely."""
    async with live_deployment(kind, tmp_path_factory.mktemp(kind.name)) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay_url(
    live: Live, kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """A relay and a frontend of its own in front of the same workers."""
    config = live.deployment.config
    relayed = make_config(
        kind,
        tmp_path_factory.mktemp("relay"),
        router__attachment="relay",
        router__prefill_namespace=config.prefill_namespace,
        router__decode_namespace=config.decode_namespace,
        dynamo__namespace="relayed",
        dynamo__file_kv=str(live.deployment.run_dir / "discovery"),
        prefill__engine="external",
        decode__engine="external",
    )
    async with Deployment.start(relayed) as deployment:
        yield deployment.url
