# SPDX-License-Identifier: Apache-2.0
"""A deployment whose workers can be called directly, and whose engines can be asked for proof.

The tests hold both ends of a hand-over: they send the prefill leg and the decode leg themselves,
in the preprocessed form that the stock frontend sends, over a DistributedRuntime of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.config import DeploymentConfig
from controller.engine import EngineLoad
from controller.runtime.demo.compare import free_port
from controller.runtime.dynamo_io import chunk_data, make_runtime
from controller.runtime.emulated.loads import engine_loads, wait_for_loads
from controller.runtime.launcher import Deployment
from controller.runtime.resources import read_deployment_with
from controller.runtime.router.handover import (
    decode_request,
    is_handover,
    local_answer,
    prefill_request,
    release_request,
)
from controller.runtime.router.ports import read_cards

MODEL = "equilibrium/tiny"
_LETTERS = tuple(b" abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the two engines, and how patient a test has to be with it."""

    name: str
    lease_s: float
    prompt_tokens: int
    """A prompt of a good few blocks."""
    long_prompt_tokens: int
    """A prompt whose prefill takes so long that it can be cancelled in the middle."""
    long_local_tokens: int
    """The same on the decode worker."""
    fill_tokens: int
    """Prompt length when an engine is filled."""
    reserved_blocks: int
    """Blocks of the capacity that no request can get (vLLM keeps a null block)."""
    during_s: float
    """A moment in the middle of the long prompt's prefill."""
    request_s: float
    """About how long a small request takes on a busy worker."""
    timeout_s: float
    """Bound of anything that must not hang."""
    cancellations: int
    soon_share: float
    """Share of the lease after which blocks that are still pinned count as forgotten."""

    @property
    def real(self) -> bool:
        return self.name == "vllm"

    @property
    def soon_s(self) -> float:
        """Well before a lease ends: what is free by then was released, not forgotten."""
        return self.soon_share * self.lease_s


EMULATED = Kind(
    name="emulated",
    lease_s=5.0,
    prompt_tokens=300,
    long_prompt_tokens=3000,
    long_local_tokens=9000,
    fill_tokens=512,
    reserved_blocks=0,
    during_s=0.06,
    request_s=0.4,
    timeout_s=20.0,
    cancellations=5000,
    soon_share=0.6,
)
# A worker that sat idle may first have to read its own code back from a slow disk: seen to take
# 20 s on a small virtual machine. Whatever tells "released" from "forgotten" must be longer.
VLLM = Kind(
    name="vllm",
    lease_s=75.0,
    prompt_tokens=300,
    long_prompt_tokens=1500,
    long_local_tokens=1900,
    fill_tokens=640,
    reserved_blocks=1,
    during_s=0.3,
    request_s=2.0,
    timeout_s=180.0,
    cancellations=500,
    soon_share=0.8,
)
KINDS = {kind.name: kind for kind in (EMULATED, VLLM)}


def real_python() -> Path:
    """The interpreter that has vLLM: EQUILIBRIUM_REAL_ENGINE names its environment."""
    root = Path(__file__).parents[2]
    named = os.environ.get("EQUILIBRIUM_REAL_ENGINE") or ".venv-vllm"
    return root / Path(named).expanduser() / "bin" / "python"


def make_config(kind: Kind, run_dir: Path, **changes: Any) -> DeploymentConfig:
    """One prefill and one decode worker; `section__key=value` replaces a value."""
    values: dict[str, Any] = {
        "run_dir": str(run_dir),
        "frontend__http_port": free_port(),
        "router__policy": "always_remote",
        "router__kv_lease_s": kind.lease_s,
        "router__kv_lease_margin_s": kind.lease_s / 5,
        "decode__workers": 1,
    }
    values |= _vllm_values() if kind.real else _emulated_values(kind)
    base = "local_vllm_cpu" if kind.real else "local_1p2d"
    overrides = [(k.replace("__", "."), v) for k, v in (values | changes).items()]
    return read_deployment_with(base, overrides)


def _emulated_values(kind: Kind) -> dict[str, Any]:
    return {
        "prefill__emulated__block_size": 16,
        "prefill__emulated__num_blocks": 256,
        "prefill__emulated__kv_lease_s": kind.lease_s,
        "decode__emulated__block_size": 16,
        "decode__emulated__num_blocks": 640,
        # Short steps: an abort takes effect at the end of one.
        "decode__emulated__max_num_batched_tokens": 512,
    }


def _vllm_values() -> dict[str, Any]:
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {
            "kv_lease_duration": int(VLLM.lease_s),
            # NIXL's thread pool posted a transfer a minute late on two cores.
            "num_threads": 0,
        },
    }
    args = [
        "--dtype=float32",
        "--enforce-eager",
        "--max-model-len=2048",
        "--max-num-seqs=16",
        # Few blocks: the worker can be filled, and what a lost lease left is soon reused.
        "--num-gpu-blocks-override=17",
        "--max-num-batched-tokens=256",
        f"--kv-transfer-config={json.dumps(transfer)}",
    ]
    python = str(real_python())
    return {
        f"{pool}__vllm__{key}": value
        for pool in ("prefill", "decode")
        for key, value in (("python", python), ("args", args))
    }


def make_prompt(rng: random.Random, tokens: int) -> list[int]:
    """Random letters, one token each."""
    return rng.choices(_LETTERS, k=tokens)


def make_request(token_ids: Sequence[int], max_tokens: int = 8, **more: Any) -> dict[str, Any]:
    """A request as the stock frontend hands it to workers: greedy, never ended by itself."""
    return {
        "model": MODEL,
        "token_ids": list(token_ids),
        "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": True},
        "sampling_options": {"temperature": 0.0},
        "output_options": {},
        "eos_token_ids": [257],
        "annotations": [],
        "routing": {},
    } | more


def tokens_of(chunks: Sequence[dict[str, Any]], index: int = 0) -> list[int]:
    """The generated tokens of one choice."""
    return [
        token
        for chunk in chunks
        if (chunk.get("index") or 0) == index
        for token in chunk.get("token_ids") or ()
    ]


def idle(load: EngineLoad) -> bool:
    """Nothing runs, waits or is pinned."""
    return not (
        load.pinned_blocks
        or load.running_requests
        or load.waiting_requests
        or load.pulling_requests
    )


class Live:
    """A deployment that is up, and a direct way to its workers."""

    def __init__(
        self, kind: Kind, deployment: Deployment, runtime: Any, prefill: Any, decode: Any
    ) -> None:
        self.kind = kind
        self.deployment = deployment
        self.url = deployment.url
        self.runtime = runtime
        self.prefill_client = prefill
        self.decode_client = decode
        self.prefill_blocks = 0
        self.decode_blocks = 0
        self.block_size = 0
        self.rng = random.Random(20261130)

    def prompt(self, tokens: int | None = None) -> list[int]:
        """A prompt that nobody has asked before."""
        return make_prompt(self.rng, tokens or self.kind.prompt_tokens)

    async def prefill_leg(
        self, request: dict[str, Any], context: Any = None
    ) -> list[dict[str, Any]]:
        """The prefill leg on the prefill worker, as stock sends it."""
        return await self._leg(self.prefill_client, prefill_request(request), context)

    async def decode_leg(
        self, request: dict[str, Any], context: Any = None
    ) -> list[dict[str, Any]]:
        """A decode leg on the decode worker."""
        return await self._leg(self.decode_client, request, context)

    async def remote(self, request: dict[str, Any]) -> list[int]:
        """The answer's tokens when the prefill worker computes the prompt."""
        answer = (await self.prefill_leg(request))[0]
        assert is_handover(answer), answer
        return tokens_of(await self.decode_leg(decode_request(request, answer)))

    async def local(self, request: dict[str, Any]) -> list[int]:
        """The answer's tokens when the decode worker computes the prompt."""
        return tokens_of(await self.decode_leg(decode_request(request, local_answer())))

    async def cold(self, request: dict[str, Any]) -> list[int]:
        """As `local`, with nothing of the prompt in the decode worker's cache."""
        await self.forget_decode_cache()
        return await self.local(request)

    async def release(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """Free a hand-over that is not wanted: a decode leg, cancelled at once."""
        from dynamo.runtime import Context

        context = Context()
        context.stop_generating()
        await self._leg(self.decode_client, release_request(request, answer), context)

    async def fill_prefill_worker(self) -> float:
        """Pin the prefill worker's whole KV capacity by prompts of one moment; seconds it took.

        The last of them finishes only if every block was free. TimeoutError when it did not.
        """
        started = time.monotonic()
        requests = [
            make_request(p, 1)
            for p in self._covering(self.prefill_blocks - self.kind.reserved_blocks)
        ]
        legs = [asyncio.create_task(self.prefill_leg(r)) for r in requests]
        try:
            done, late = await asyncio.wait(legs, timeout=self.kind.timeout_s)
            took_s = time.monotonic() - started
            if late:
                raise TimeoutError(f"{len(late)} of {len(legs)} prompts found no room")
            assert all(is_handover(leg.result()[0]) for leg in done)
        finally:
            for leg in legs:
                leg.cancel()
            await asyncio.gather(*legs, return_exceptions=True)
            for request, leg in zip(requests, legs, strict=True):
                if not leg.cancelled() and leg.exception() is None:
                    await self.release(request, leg.result()[0])
        return took_s

    async def accepts_its_whole_capacity_at_once(self) -> bool:
        """Whether no block of the prefill worker waits for the end of a lease."""
        return await self.fill_prefill_worker() < self.kind.soon_s

    async def forget_decode_cache(self) -> None:
        """Overwrite every block of the decode worker."""
        for prompt in self._covering(self.decode_blocks - self.kind.reserved_blocks):
            await self.local(make_request(prompt, 1))

    async def engine_is_free(self, within_s: float | None = None) -> bool:
        """Whether no block stays pinned, measured at the engine and well before a lease ends."""
        within_s = within_s or self.kind.soon_s
        if self.kind.real:
            return await self.accepts_its_whole_capacity_at_once()
        return all(map(idle, (await self.wait_for_loads(idle, within_s)).values()))

    async def loads(self) -> dict[str, EngineLoad]:
        """What the emulated engines hold."""
        return await engine_loads(self.deployment.run_dir)

    async def wait_for_loads(
        self, condition: Callable[[EngineLoad], bool], timeout_s: float
    ) -> dict[str, EngineLoad]:
        """The emulated engines' loads once all fulfil the condition, or at the end of time."""
        return await wait_for_loads(self.deployment.run_dir, condition, timeout_s)

    async def connect(self) -> None:
        """Wait for both workers; read their sizes off the model cards."""
        config = self.deployment.config
        for client in (self.prefill_client, self.decode_client):
            await asyncio.wait_for(client.wait_for_instances(), self.kind.timeout_s)
        prefill = await self._card(config.prefill_endpoint)
        decode = await self._card(config.decode_endpoint)
        self.block_size = int(prefill["kv_cache_block_size"])
        self.prefill_blocks = int(prefill["runtime_config"]["total_kv_blocks"])
        self.decode_blocks = int(decode["runtime_config"]["total_kv_blocks"])

    async def warm_up(self) -> None:
        """Let the workers meet: a real engine's first transfers fail while they shake hands."""
        for _ in range(10):
            if await self.remote(make_request(self.prompt(), 1)):
                break
        else:
            raise AssertionError("no transfer between the workers has succeeded")
        await asyncio.sleep(self.kind.lease_s)  # what the failed ones left pinned

    async def _card(self, endpoint: str) -> dict[str, Any]:
        from dynamo.llm import FpmEventSubscriber

        subscriber = FpmEventSubscriber(self.runtime.endpoint(endpoint))
        subscriber.start_tracking()
        try:
            for _ in range(200):
                for card in read_cards(subscriber).values():
                    return card
                await asyncio.sleep(0.05)
        finally:
            subscriber.shutdown()
        raise AssertionError(f"no model card at {endpoint}")

    def _covering(self, blocks: int) -> list[list[int]]:
        """Prompts that together take exactly so many blocks."""
        each = self.kind.fill_tokens // self.block_size
        sizes = [each] * (blocks // each)
        if blocks % each:
            sizes.append(blocks % each)
        # One token short of the last block: the engine needs no room for what it generates.
        return [self.prompt(size * self.block_size - 1) for size in sizes]

    async def _leg(
        self, client: Any, request: dict[str, Any], context: Any
    ) -> list[dict[str, Any]]:
        from dynamo.runtime import Context

        (worker_id,) = client.instance_ids()
        return await asyncio.wait_for(
            _collect(client, request, worker_id, context or Context()), self.kind.timeout_s
        )


async def _collect(
    client: Any, request: dict[str, Any], worker_id: int, context: Any
) -> list[dict[str, Any]]:
    stream = await client.direct(request, worker_id, context=context)
    return [data async for item in stream if (data := chunk_data(item)) is not None]


@contextlib.asynccontextmanager
async def live_deployment(kind: Kind, run_dir: Path, **changes: Any) -> AsyncIterator[Live]:
    """A deployment that is up inside the block, with direct clients of both pools."""
    config = make_config(kind, run_dir, **changes)
    async with Deployment.start(config) as deployment:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DYN_FILE_KV", str(deployment.run_dir / "discovery"))
            patch.setenv("DYN_TCP_RPC_HOST", "127.0.0.1")
            patch.setenv("DYN_SELF_HOST_METADATA", "0")
            patch.setenv("DYN_LOG", "error")
            for name, value in deployment.client_env.items():
                patch.setenv(name, value)
            runtime = make_runtime(config.dynamo)
            try:
                prefill = await runtime.endpoint(config.prefill_endpoint).client()
                decode = await runtime.endpoint(config.decode_endpoint).client()
                live = Live(kind, deployment, runtime, prefill, decode)
                await live.connect()
                if kind.real:
                    await live.warm_up()
                yield live
            finally:
                runtime.shutdown()
