# SPDX-License-Identifier: Apache-2.0
"""An emulated worker with what a real one has on its card: parsers, adapters, an alias, a limit.

Run as a program, with the arguments of `equilibrium worker`, or with `--others` for the other
models of the deployment (parity_others.py). Owns: what these workers say. A prompt decides it:

    say<<TEXT>>    the answer is TEXT, finished with `stop`
    tell<<PATH>>   the answer is what the decode worker was sent at PATH (`sampling_options.n`),
                   as JSON, and `worker` is its own name

Everything else, timing and KV above all, is the emulated worker's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from parity_others import serve_others

from controller.config import DeploymentConfig, EmulatedConfig
from controller.runtime.components import run_component
from controller.runtime.emulated import serve
from controller.runtime.emulated.handler import Handler, RequestContext
from controller.runtime.resources import read_deployment_with

ALIAS = "equilibrium/alias"
ADAPTER = "equilibrium/adapter"
CONTEXT_TOKENS = 65_536
"""On the card: half of what the model's own files say."""
_ADAPTER_ID = 7
# A tag is one token to a real model, and one chunk here: parsers look for it in a chunk's text.
_PIECE = re.compile(rb"<[^<>]*>|[^<]{1,4}|<", re.DOTALL)
_DIRECTIVE = re.compile(rb"(say|tell)<<(.*)>>", re.DOTALL)


def scripted(request: dict[str, Any], worker: str) -> list[bytes] | None:
    """What the prompt orders to be answered, in chunks; None when it orders nothing."""
    prompt = bytes(token for token in request.get("token_ids") or () if token < 256)
    match = _DIRECTIVE.search(prompt)
    if match is None:
        return None
    if match[1] == b"say":
        return _PIECE.findall(match[2])
    value: Any = {**request, "worker": worker}
    for key in match[2].decode().split("."):
        value = (value or {}).get(key)
    return _PIECE.findall(json.dumps(value, sort_keys=True).encode())


class ScriptedHandler(Handler):
    """A handler that says what its prompt orders; log probabilities if they are asked for."""

    name = "nobody"

    async def generate(
        self, request: dict[str, Any], context: RequestContext
    ) -> AsyncIterator[dict[str, Any]]:
        order = scripted(request, self.name) if self._role == "decode" else None
        asked = request
        if order is not None:
            stop = {**(request.get("stop_conditions") or {}), "max_tokens": len(order)}
            asked = {**request, "stop_conditions": stop}
        with_logprobs = (request.get("output_options") or {}).get("logprobs") is not None
        said = 0
        async with contextlib.aclosing(super().generate(asked, context)) as chunks:
            async for chunk in chunks:
                if order is not None:
                    count = len(chunk["token_ids"])
                    chunk["token_ids"] = list(b"".join(order[said : said + count]))
                    said += count
                    if chunk.get("finish_reason") == "length":
                        chunk["finish_reason"] = "stop"
                more = _logprobs(chunk["token_ids"]) if with_logprobs else {}
                yield {**chunk, **more}


def _logprobs(token_ids: list[int]) -> dict[str, Any]:
    """As dynamo.vllm sends them: the token's own, and the best two of each position."""
    tops = [
        [
            {"rank": rank, "token_id": t, "token": chr(t), "logprob": -0.25 * rank, "bytes": [t]}
            for rank, t in ((1, token), (2, ord("z")))
        ]
        for token in token_ids
    ]
    return {"log_probs": [-0.25] * len(token_ids), "top_logprobs": tops}


class ParityService(serve.EmulatedService):
    """Registers with parsers and LoRA; loads the adapter when the run folder says so."""

    def __init__(self, config: DeploymentConfig, role: str, name: str, run_dir: Path) -> None:
        super().__init__(config, role, name, run_dir)
        self._orders = run_dir
        self._adapters: dict[str, int] = {}
        self._card: dict[str, Any] = {}
        ScriptedHandler.name = name  # one worker a process

    async def serve(self, *args: Any) -> None:
        path = serve.endpoint_path(self._config, self._role).rsplit(".", 1)[0]
        loras = self._runtime.endpoint(f"{path}.list_loras").serve_endpoint(self._list_loras)
        beside = [asyncio.ensure_future(loras), asyncio.create_task(self._follow_orders())]
        try:
            await super().serve(*args)
        finally:
            for task in beside:
                task.cancel()

    async def _list_loras(self, request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"status": "success", "loras": self._adapters, "count": len(self._adapters)}

    async def _follow_orders(self) -> None:
        """Load and unload the adapter, as an operator does with `load_lora` on a worker."""
        from dynamo.llm import register_model, unregister_model

        while True:
            await asyncio.sleep(0.1)
            wanted = (self._orders / f"adapter-{self._role}").exists()
            if not self._card or wanted == bool(self._adapters):
                continue
            if wanted:
                adapter = {"lora_adapter": True, "lora_id": _ADAPTER_ID}
                await register_model(
                    **self._card, user_data=adapter, lora_name=ADAPTER, base_model_path=self._model
                )
                self._adapters[ADAPTER] = _ADAPTER_ID
            else:
                await unregister_model(self._endpoint, ADAPTER)
                self._adapters.clear()

    @property
    def _model(self) -> str:
        return self._config.model

    async def _register(self, emulated: EmulatedConfig) -> None:
        from dynamo.llm import (
            ModelInput,
            ModelRuntimeConfig,
            ModelType,
            WorkerType,
            register_model,
        )

        runtime_config = ModelRuntimeConfig()
        runtime_config.total_kv_blocks = emulated.num_blocks
        runtime_config.max_num_seqs = emulated.max_num_seqs
        runtime_config.max_num_batched_tokens = emulated.max_num_batched_tokens
        runtime_config.context_length = CONTEXT_TOKENS
        runtime_config.tool_call_parser = "hermes"
        runtime_config.reasoning_parser = "basic"
        prefill = self._role == "prefill"
        card = {
            "model_input": ModelInput.Tokens,
            "model_type": ModelType.Prefill if prefill else ModelType.Chat | ModelType.Completions,
            "endpoint": self._endpoint,
            "model_path": self._model,
            "worker_type": WorkerType.Prefill if prefill else WorkerType.Decode,
            "needs": [[WorkerType.Decode if prefill else WorkerType.Prefill]],
            "kv_cache_block_size": emulated.block_size,
            "runtime_config": runtime_config,
            "max_gpu_lora_count": 2,
            "ignore_weights": True,
        }
        await register_model(**card, model_name=self._model, model_aliases=[ALIAS])
        self._card = card


def _wait_for(order: Path) -> None:
    while not order.exists():
        time.sleep(0.05)


def _run(args: argparse.Namespace) -> None:
    config, run_dir = read_deployment_with(args.config), args.config.resolve().parent
    if args.when is not None:
        _wait_for(args.when)
    if args.others:
        run_component(serve_others(config))
        return
    # Two names of the emulated worker's module, in a process that is ours alone.
    serve.Handler, serve.EmulatedService = ScriptedHandler, ParityService  # type: ignore[misc]
    run_component(serve.serve_workers(config, args.role, args.index, args.count, run_dir))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--role", choices=("prefill", "decode"))
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--when", type=Path, help="wait until this file exists")
    return parser.parse_args()


if __name__ == "__main__":
    _run(_arguments())
