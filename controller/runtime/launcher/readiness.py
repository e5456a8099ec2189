# SPDX-License-Identifier: Apache-2.0
"""Is the deployment ready, and if not, what is missing? Asked of the frontend over HTTP.

What Dynamo 1.4.2 offers, found by experiment with stock mockers:
- `GET /v1/models` lists a model once every role that its workers declare in `needs` is there;
  from that moment on a chat request is answered with 200 (404 before the first worker, 503
  between). It says nothing about *how many* workers there are.
- `GET /health` lists every instance in discovery, of all namespaces, so also the prefill workers
  in their private namespace; the same for every discovery backend. Its `status` is always healthy.
- `dynamo_frontend_model_ready` does not exist yet (1.6.1 has it).
- The frontend logs "P/D routing remains disabled ..." (ERROR) in most starts, and yet sends
  prefills to the prefill worker from the first request on: not a signal.
So: ready = the frontend answers, every planned instance is in `/health`, the model is listed.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from controller.runtime.launcher.plan import ProcessSpec, Role

_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class FrontendView:
    """What the frontend knows at one instant."""

    answers: bool = False
    models: tuple[str, ...] = ()
    instances: Mapping[str, int] = field(default_factory=dict)
    """Instances by endpoint, `namespace.component.endpoint`."""


def missing(
    view: FrontendView, url: str, specs: Sequence[ProcessSpec], model: str | None
) -> tuple[str, ...]:
    """What is not there yet, one phrase each; empty when all is. `model` None: do not ask."""
    if not view.answers:
        return (f"the frontend does not answer at {url}{_frontend_log(specs)}",)
    expected: Counter[str] = Counter()
    holders: dict[str, list[ProcessSpec]] = {}
    for spec in specs:
        if spec.endpoint:
            expected[spec.endpoint] += spec.instances
            holders.setdefault(spec.endpoint, []).append(spec)
    phrases = []
    for endpoint, count in expected.items():
        there = view.instances.get(endpoint, 0)
        if there < count:
            logs = ", ".join(f"logs/{spec.name}.log" for spec in holders[endpoint])
            what = _plural(holders[endpoint][0].role, count)
            phrases.append(f"{there} of {count} {what} registered at {endpoint} ({logs})")
    if not phrases and model is not None and model not in view.models:
        listed = ", ".join(view.models) or "no model"
        phrases.append(f"the frontend lists {listed}, not {model}{_frontend_log(specs)}")
    return tuple(phrases)


def _frontend_log(specs: Sequence[ProcessSpec]) -> str:
    ours = any(spec.role is Role.FRONTEND for spec in specs)
    return " (logs/frontend.log)" if ours else ""


def _plural(role: Role, count: int) -> str:
    noun = role.value if role is Role.ROUTER else f"{role.value} worker"
    return noun if count == 1 else f"{noun}s"


async def look(session: aiohttp.ClientSession, url: str) -> FrontendView:
    """Ask the frontend once; what it does not say is absent from the view."""
    try:
        health = await _get_json(session, f"{url}/health")
        models = await _get_json(session, f"{url}/v1/models")
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):
        return FrontendView()
    counts = Counter(
        f"{entry.get('namespace')}.{entry.get('component')}.{entry.get('endpoint')}"
        for entry in health.get("instances") or []
    )
    names = tuple(str(entry.get("id")) for entry in models.get("data") or [])
    return FrontendView(answers=True, models=names, instances=counts)


async def wait_until_ready(
    url: str, specs: Sequence[ProcessSpec], model: str | None, timeout_s: float
) -> tuple[str, ...]:
    """Poll until nothing is missing or the time is up; returns what is missing then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    async with aiohttp.ClientSession(timeout=_HTTP_TIMEOUT) as session:
        while True:
            phrases = missing(await look(session, url), url, specs, model)
            if not phrases or loop.time() >= deadline:
                return phrases
            await asyncio.sleep(_POLL_S)


async def _get_json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        value = json.loads(await response.text())
    if not isinstance(value, dict):
        raise ValueError(f"{url} did not answer with an object")
    return value
