# SPDX-License-Identifier: Apache-2.0
"""Deployments, loads and processor shares that the router's experiments have in common.

Loads run in the measuring process and count bytes and tokens without parsing more than they must:
client and servers share the machine's cores.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from controller.config import DeploymentConfig
from controller.runtime.demo.compare import free_port
from controller.runtime.launcher import Deployment
from controller.runtime.load.prompts import words
from controller.runtime.resources import read_deployment_with

TICKS_S = os.sysconf("SC_CLK_TCK")


def deployment(name: str, folder: Path, changes: Mapping[str, Any]) -> DeploymentConfig:
    """`local_1p2d` with one decode worker, on a free port, with `changes` by key path."""
    base: dict[str, Any] = {
        "name": name,
        "run_dir": str(folder),
        "frontend.http_port": free_port(),
        "decode.workers": 1,
        "ready_timeout_s": 240,
    }
    return read_deployment_with("local_1p2d", list({**base, **changes}.items()))


def open_http() -> aiohttp.ClientSession:
    """A client without a limit on connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )


@dataclass
class Answer:
    """One request's fate; wall-clock seconds."""

    status: int
    ttft_s: float | None
    took_s: float
    chunks: int
    error: str = ""


async def ask(
    http: aiohttp.ClientSession, url: str, key: str, prompt_tokens: int, output_tokens: int
) -> Answer:
    """One streamed completion with a prompt that nobody else has (a byte is a token)."""
    body = {
        "model": "equilibrium/tiny",
        "prompt": words(key, prompt_tokens),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    started, first_s, chunks = time.monotonic(), None, 0
    try:
        async with http.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                text = (await response.text())[:200]
                return Answer(response.status, None, time.monotonic() - started, 0, text)
            failed = b""
            async for data in response.content.iter_any():
                if first_s is None:
                    first_s = time.monotonic() - started
                chunks += data.count(b'"choices"')
                if b'"error"' in data or b"event: error" in data:
                    failed = data[:200]
            if failed or chunks == 0:
                return Answer(500, first_s, time.monotonic() - started, chunks, repr(failed))
            return Answer(200, first_s, time.monotonic() - started, chunks)
    except (aiohttp.ClientError, OSError) as error:
        return Answer(0, None, time.monotonic() - started, chunks, type(error).__name__)


def processor_s(running: Deployment) -> dict[str, float]:
    """Processor seconds that each process has used so far."""
    used = {}
    for status in running.status():
        try:
            fields = Path(f"/proc/{status.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        used[status.name] = (int(fields[11]) + int(fields[12])) / TICKS_S
    return used


@dataclass
class Block:
    """What one block of load gave."""

    tokens: int = 0
    answers: list[Answer] = field(default_factory=list)
    wall_s: float = 0.0
    processors: dict[str, float] = field(default_factory=dict)
    """Cores that each process kept busy."""

    @property
    def median_ttft_ms(self) -> float:
        """Of the answers with a token."""
        return 1e3 * statistics.median(a.ttft_s for a in self.answers if a.ttft_s is not None)

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return sum(a.status != 200 for a in self.answers)


async def burst(
    http: aiohttp.ClientSession, running: Deployment, key: str, prompts: int, prompt_tokens: int
) -> Block:
    """All prompts at once, one token each: how long until the last is answered."""
    started, used = time.monotonic(), processor_s(running)
    asks = (ask(http, running.url, f"{key}:{k}", prompt_tokens, 1) for k in range(prompts))
    answers = list(await asyncio.gather(*asks))
    return _block(running, started, used, answers, prompts * prompt_tokens)


async def streams(
    http: aiohttp.ClientSession,
    running: Deployment,
    key: str,
    count: int,
    output_tokens: int,
    prompt_tokens: int = 16,
) -> Block:
    """So many streams at once, each to its end."""
    started, used = time.monotonic(), processor_s(running)
    asks = (
        ask(http, running.url, f"{key}:{k}", prompt_tokens, output_tokens) for k in range(count)
    )
    answers = list(await asyncio.gather(*asks))
    return _block(running, started, used, answers, sum(a.chunks for a in answers))


async def one_by_one(
    http: aiohttp.ClientSession, running: Deployment, key: str, count: int, prompt_tokens: int
) -> Block:
    """Sequential requests: what an idle deployment's TTFT is."""
    started, used = time.monotonic(), processor_s(running)
    answers = [await ask(http, running.url, f"{key}:{k}", prompt_tokens, 2) for k in range(count)]
    return _block(running, started, used, answers, sum(a.chunks for a in answers))


def _block(
    running: Deployment,
    started: float,
    used: dict[str, float],
    answers: list[Answer],
    tokens: int,
) -> Block:
    wall_s = time.monotonic() - started
    now = processor_s(running)
    shares = {name: round((s - used.get(name, 0.0)) / wall_s, 3) for name, s in now.items()}
    return Block(tokens, answers, wall_s, shares)
