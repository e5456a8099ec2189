# SPDX-License-Identifier: Apache-2.0
"""One deployment under test, and what a client and an operator can do with it.

Owns: which processes a parity deployment has, asking it over HTTP, killing and starting its
workers, looking into its engines. Does not own: what is asked (probes_*.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from parity_others import OTHER_ENDPOINTS

from controller.config import DeploymentConfig
from controller.engine import EngineLoad
from controller.runtime.demo.compare import free_port
from controller.runtime.emulated.loads import engine_loads, wait_for_loads
from controller.runtime.launcher import Deployment
from controller.runtime.launcher.deployment import plan_here
from controller.runtime.launcher.plan import ProcessSpec, Role

MODEL = "equilibrium/tiny"
CHAT = "/v1/chat/completions"
LEASE_S = 3.0
_WORKER = Path(__file__).with_name("parity_worker.py")
_OWN = frozenset({"id", "created", "created_at", "completed_at", "request_id", "msg_id"})
_PATIENCE_S = 10.0


def make_config(attachment: str, run_dir: Path) -> DeploymentConfig:
    """One prefill and two decode workers behind an attachment, a short KV lease."""
    engine = {"kv_lease_s": LEASE_S, "slowdown": 0.5}
    return DeploymentConfig.model_validate(
        {
            "schema": "equilibrium.deployment/1",
            "name": f"parity-{attachment}",
            "run_dir": str(run_dir),
            "frontend": {
                "http_port": free_port(),
                "migration_limit": 3,
                "session_affinity_ttl_s": 60,
            },
            "router": {
                "attachment": attachment,
                "kv_lease_s": LEASE_S,
                "kv_lease_margin_s": 1.0,
            },
            "prefill": {"emulated": engine},
            "decode": {"workers": 2, "emulated": engine},
        }
    )


def plan(config: DeploymentConfig, run_dir: Path) -> tuple[ProcessSpec, ...]:
    """The project's own plan with our workers in it, the other models, and workers in reserve.

    A worker in reserve has started and waits for a file to register.
    """
    specs = []
    for spec in plan_here(config, run_dir):
        if spec.role not in (Role.PREFILL, Role.DECODE):
            specs.append(spec)
            continue
        # python -m controller worker ARGUMENTS
        ours = replace(spec, argv=(sys.executable, str(_WORKER), *spec.argv[4:]))
        specs.append(ours)
        if spec.name.endswith("-0"):
            specs.append(_reserve(ours, run_dir))
    worker = specs[-1]
    folder = ("--config", str(run_dir / "config.yaml"))
    others = (sys.executable, str(_WORKER), *folder, "--others")
    specs.append(
        replace(
            worker,
            name="others",
            argv=others,
            endpoint=f"{config.dynamo.namespace}.{OTHER_ENDPOINTS[-1]}",
            instances=1,
        )
    )
    return tuple(specs)


def _reserve(spec: ProcessSpec, run_dir: Path) -> ProcessSpec:
    role = spec.role.value
    arguments = ("--index", "9", "--when", str(run_dir / f"start-{role}"))
    return replace(
        spec,
        name=f"{role}-reserve",
        argv=(*spec.argv, *arguments),
        endpoint=None,
        instances=0,
    )


Answer = tuple[int, Any]
"""Status, and the body: a document, or the events of a stream; ids and times left out."""


class Site:
    """A deployment that is up."""

    def __init__(self, deployment: Deployment, http: aiohttp.ClientSession) -> None:
        self._deployment = deployment
        self._http = http
        self._prompts = 0
        self.run_dir = deployment.run_dir

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> Answer:
        """Any request, whole or streamed."""
        async with self._http.post(
            self._deployment.url + path, json={"model": MODEL} | body, headers=headers
        ) as response:
            return response.status, comparable(await response.text())

    async def get(self, path: str) -> Answer:
        """Status and document."""
        async with self._http.get(self._deployment.url + path) as response:
            return response.status, comparable(await response.text())

    async def chat(self, content: str, session: str | None = None, **body: Any) -> Answer:
        """A chat request."""
        headers = {} if session is None else {"x-dynamo-session-id": session}
        asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 8} | body
        return await self.post(CHAT, asked, **headers)

    async def models(self) -> list[str]:
        """What `/v1/models` lists."""
        async with self._http.get(self._deployment.url + "/v1/models") as response:
            return sorted(entry["id"] for entry in (await response.json())["data"])

    async def leave(self, content: str, after_s: float, **body: Any) -> None:
        """A client that goes away."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.chat(content, stream=True, **body), after_s)

    async def until(
        self, what: Callable[[], Any], timeout_s: float = _PATIENCE_S, pause_s: float = 0.1
    ) -> bool:
        """Whether an awaitable condition comes true in time."""
        deadline = time.monotonic() + timeout_s
        while not await what():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(pause_s)
        return True

    async def prefilled(self) -> bool:
        """Whether a prompt that nobody has seen is computed by a prefill worker, and answered."""
        self._prompts += 1
        content = f"{self._prompts} " + "who computes this " * 500
        asking = asyncio.create_task(self.chat(content, max_tokens=2))
        met = False
        while not asking.done():
            met = met or await self.prefill_runs()
            await asyncio.sleep(0.01)
        return met and (await asking)[0] == 200

    async def prefill_runs(self) -> bool:
        """Whether a prefill worker computes something right now."""
        loads = await engine_loads(self.run_dir)
        return any(load.running_requests for name, load in loads.items() if "prefill" in name)

    async def free_within(self, timeout_s: float) -> bool:
        """Whether every engine holds nothing before the time is up."""
        return all(map(_free, (await wait_for_loads(self.run_dir, _free, timeout_s)).values()))

    def has(self, name: str) -> bool:
        """Whether the deployment has such a process."""
        return any(process.name == name for process in self._deployment.status())

    async def kill(self, name: str) -> None:
        """kill -9, and discovery has been told."""
        child = self._deployment.process(name)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()

    def order(self, name: str, wanted: bool = True) -> None:
        """Give the workers an order by a file of the run folder."""
        path = self.run_dir / name
        path.touch() if wanted else path.unlink()


def _free(load: EngineLoad) -> bool:
    return not (load.running_requests or load.waiting_requests or load.pinned_blocks)


def comparable(text: str) -> Any:
    """A body without what differs between two answers to the same request."""
    if text.startswith(("data:", "event:", ":")):
        lines = (line for line in text.splitlines() if line)
        return [_without_own(_parsed(line.removeprefix("data: "))) for line in lines]
    return _without_own(_parsed(text))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "*" if k in _OWN else _without_own(v) for k, v in value.items()}
    return [_without_own(item) for item in value] if isinstance(value, list) else value


def deltas(answer: Answer) -> list[dict[str, Any]]:
    """The deltas of a streamed chat."""
    events = answer[1] if isinstance(answer[1], list) else []
    chunks = [event for event in events if isinstance(event, dict)]
    return [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]


def text_of(answer: Answer) -> str | None:
    """The content of a chat's first choice, streamed or not."""
    if isinstance(answer[1], list):
        return "".join(delta.get("content") or "" for delta in deltas(answer))
    try:
        content: str | None = answer[1]["choices"][0]["message"]["content"]
        return content
    except (KeyError, IndexError, TypeError):
        return None


@contextlib.asynccontextmanager
async def running_site(attachment: str, run_dir: Path) -> AsyncIterator[Site]:
    """A deployment behind an attachment, up inside the block."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        Deployment.start(make_config(attachment, run_dir), plan=plan) as deployment,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        site = Site(deployment, http)
        # A frontend that has just listed the model may leave its first prompts to decode workers.
        assert await site.until(site.prefilled), "no prompt ever went to the prefill worker"
        yield site


def statuses(answers: Sequence[Answer]) -> str:
    """`HTTP 400` for answers that agree, all of them for others."""
    found = [str(status) for status, _ in answers]
    return f"HTTP {found[0] if len(set(found)) == 1 else ', '.join(found)}"
