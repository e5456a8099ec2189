# SPDX-License-Identifier: Apache-2.0
"""The other models of a parity deployment: one with pools of its own, and embeddings models.

They register in the deployment's namespace and know nothing of a router. The chat model answers
`other`; its prefill worker hands over nothing that its decode worker would need.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from controller.config import DeploymentConfig
from controller.runtime.dynamo_io import make_runtime

OTHER = "equilibrium/other"
EMBEDDER = "equilibrium/embedder"
EMBEDDER_IN_KV_MODE = "equilibrium/embedder-kv"
"""Its card says nothing of routing, so that the frontend's own mode holds."""
OTHER_ENDPOINTS = (
    "otherprefill.generate",
    "other.generate",
    "embedder.generate",
    "embedderkv.generate",
)
_ANSWER = b"other"


async def prefill(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
    """The prefill leg of the other model."""
    params = {"kv_transfer_params": {"do_remote_prefill": False}}
    yield {
        "token_ids": [_ANSWER[0]],
        "index": 0,
        "finish_reason": "length",
        "disaggregated_params": params,
    }


async def decode(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
    """Its decode leg."""
    if not request.get("prefill_result"):
        raise ValueError("the other model's prefill leg is missing")
    prompt, answer = len(request["token_ids"]), len(_ANSWER)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }
    yield {
        "token_ids": list(_ANSWER),
        "index": 0,
        "finish_reason": "stop",
        "completion_usage": usage,
    }


async def embed(request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
    """One vector a text: its length, and whether it begins with a q."""
    asked = request["input"]
    texts = [asked] if isinstance(asked, str) else asked
    vectors = [
        {
            "object": "embedding",
            "index": index,
            "embedding": [float(len(text)), float(text[0] == "q")],
        }
        for index, text in enumerate(texts)
    ]
    tokens = sum(map(len, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield {"object": "list", "data": vectors, "model": request["model"], "usage": usage}


async def serve_others(config: DeploymentConfig) -> None:
    """Register and serve until SIGTERM; each worker is an instance of its own."""
    from dynamo.llm import (
        ModelInput,
        ModelType,
        RouterConfig,
        RouterMode,
        WorkerType,
        register_model,
    )

    for name in (OTHER, EMBEDDER, EMBEDDER_IN_KV_MODE):
        _name_of_its_own(name)
    chat = ModelType.Chat | ModelType.Completions
    roles = (WorkerType.Prefill, WorkerType.Decode, WorkerType.Aggregated)
    kinds = (
        (ModelInput.Tokens, ModelType.Prefill, OTHER, roles[0], [[roles[1]]], prefill),
        (ModelInput.Tokens, chat, OTHER, roles[1], [[roles[0]]], decode),
        (ModelInput.Text, ModelType.Embedding, EMBEDDER, roles[2], [], embed),
        (ModelInput.Text, ModelType.Embedding, EMBEDDER_IN_KV_MODE, roles[2], [], embed),
    )
    runtimes, serving = [], []
    for where, (kind, surfaces, model, role, needs, handler) in zip(
        OTHER_ENDPOINTS, kinds, strict=True
    ):
        runtimes.append(make_runtime(config.dynamo))
        endpoint = runtimes[-1].endpoint(f"{config.dynamo.namespace}.{where}")
        await register_model(
            kind,
            surfaces,
            endpoint,
            model,
            model,
            worker_type=role,
            needs=needs,
            kv_cache_block_size=64,
            router_config=RouterConfig(RouterMode.RoundRobin) if model == EMBEDDER else None,
            ignore_weights=True,
        )
        serving.append(endpoint.serve_endpoint(handler))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: [r.shutdown() for r in runtimes])
    await asyncio.gather(*serving)


def _name_of_its_own(model: str) -> None:
    """The tiny model once more: the frontend looks the name of a card up as a path."""
    hub = Path(os.environ["HF_HOME"]) / "hub"
    entry = hub / f"models--{model.replace('/', '--')}"
    if not entry.exists():
        shutil.copytree(hub / "models--equilibrium--tiny", entry)
