# SPDX-License-Identifier: Apache-2.0
"""HTTP answers, made comparable: everything but ids and timestamps must be equal."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import aiohttp
from conformance_live import MODEL, Live

_OWN = ("id", "created", "request_id")
_APPENDED = ("text", "content", "arguments")
_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"
_MESSAGES = [{"role": "user", "content": "tell me about queues and what waits in them " * 6}]
_PROMPT = "what waits in queues, and for whom? " * 7
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}

Answer = tuple[int, list[Any]]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (_CHAT, {}),
    "chat_stream": (_CHAT, _STREAM),
    "completion": (_TEXT, {}),
    "completion_stream": (_TEXT, _STREAM),
    "stop_string": (_TEXT, {"max_tokens": 40, "stop": ["e"]}),
    "stop_string_stream": (_TEXT, {"max_tokens": 40, "stop": ["a", "o"], **_STREAM}),
    "seed": (_CHAT, {"temperature": 0.9, "seed": 7}),
    "chat_logprobs": (_CHAT, {"logprobs": True, "top_logprobs": 2}),
    "completion_logprobs": (_TEXT, {"logprobs": 2}),
    "logprobs_stream": (_CHAT, {"logprobs": True, "top_logprobs": 2, **_STREAM}),
    "guided": (_CHAT, {"guided_regex": "[ab]{6}"}),
    "tools": (_CHAT, {"tools": [_TOOL]}),
    "tools_stream": (_CHAT, {"tools": [_TOOL], **_STREAM}),
    "bad_max_tokens": (_CHAT, {"max_tokens": -1}),
    "too_long": (_TEXT, {"prompt": "x" * 140_000}),
}


async def ask_all(url: str, timeout_s: float) -> dict[str, Answer]:
    """The answer to every case, one after the other."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        return {name: await _ask(http, url, name) for name in CASES}


async def warm_up(url: str, timeout_s: float) -> None:
    """Ask until a whole answer comes: a real engine's first transfers fail."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 2}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        for number in range(10):
            body["prompt"] = f"{number} warms up " * 30
            async with http.post(url + _TEXT, json=body) as response:
                usage = (await response.json(content_type=None)).get("usage") or {}
                if usage.get("completion_tokens") == 2:
                    return
    raise AssertionError("no transfer between the workers has succeeded")


async def _ask(http: aiohttp.ClientSession, url: str, name: str) -> Answer:
    path, more = CASES[name]
    question = {"messages": _MESSAGES} if path == _CHAT else {"prompt": _PROMPT}
    body = {"model": MODEL, "max_tokens": 12, "temperature": 0.0, **question, **more}
    async with http.post(url + path, json=body) as response:
        text = await response.text()
        return response.status, [_normal(event) for event in _events(text)]


def _events(text: str) -> list[Any]:
    """The lines of a stream, or the one document."""
    if not text.startswith(("data:", "event:", ":")):
        return [_parse(text)]
    return [_parse(line.removeprefix("data: ")) for line in text.splitlines() if line]


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "*" if k in _OWN else _normal(v) for k, v in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value


def exact(answer: Answer) -> Answer:
    """Chunk by chunk."""
    return answer


def joined(answer: Answer) -> Answer:
    """A stream's chunks added up: texts and lists appended, the last of all other values."""
    status, events = answer
    chunks = [event for event in events if isinstance(event, dict) and "choices" in event]
    if len(chunks) < 2:
        return answer
    whole: dict[str, Any] = {}
    for chunk in chunks:
        choices = {str(choice.get("index", 0)): choice for choice in chunk["choices"]}
        _append(whole, {**chunk, "choices": choices})
    return status, [whole, *(event for event in events if event not in chunks)]


def _append(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        before = whole.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _append(before, value)
        elif _grows(key, value) and isinstance(before, type(value)):
            whole[key] = before + value
        elif value is not None or key not in whole:
            whole[key] = copy.deepcopy(value)


def _grows(key: str, value: Any) -> bool:
    return isinstance(value, list) or (key in _APPENDED and isinstance(value, str))


def overwrite_prefill_blocks(live: Live) -> None:
    """Make the prefill worker reuse all of its blocks. Blocks the caller, event loop and all.

    Asked over HTTP from threads, so that it works while the process's router is "frozen".
    """
    each = live.kind.fill_tokens // live.block_size * live.block_size
    count = 2 * live.prefill_blocks * live.block_size // each

    def ask(prompt: list[int]) -> int:
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{live.url}{_TEXT}", body, headers)
        with urlopen(request, timeout=live.kind.timeout_s) as response:
            status: int = response.status
            return status

    prompts = [live.prompt(each - 1) for _ in range(count)]
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, prompts)) == {200}
