# SPDX-License-Identifier: Apache-2.0
"""What a client gets: everything that the frontend makes of a worker's answer, and of a request.

A probe gives a short value and the bare answers, which must equal stock's to the byte.
"""

from __future__ import annotations

import json
from typing import Any

from parity_rows import Row, Seen
from parity_site import Answer, Site, deltas, statuses, text_of
from parity_worker import CONTEXT_TOKENS

_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_PROMPT = "what waits in queues, and for whom? " * 12
_CALL = '<tool_call>{"name": "look_up", "arguments": {"word": "queue"}}</tool_call>'
_SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
_TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": _SCHEMA}}]


async def both(site: Site, content: str, **body: Any) -> list[Answer]:
    """A chat, whole and streamed."""
    return [await site.chat(content, **body), await site.chat(content, **body, **_STREAM)]


PLAIN = Row("Chat and completions, whole and streamed", ("tokens, finish reason, usage",))


async def plain(site: Site) -> Seen:
    answers = await both(site, _PROMPT, max_tokens=12)
    for stream in ({}, _STREAM):
        body = {"prompt": _PROMPT, "max_tokens": 12, "stop": ["e"], **stream}
        answers.append(await site.post("/v1/completions", body))
    answers.append(await site.post("/v1/responses", {"input": _PROMPT, "max_output_tokens": 12}))
    if {status for status, _ in answers} != {200}:
        return Seen(statuses(answers))
    whole, streamed = (text_of(answer) for answer in answers[:2])
    same = whole == streamed and len(whole or "") == 12
    return Seen(PLAIN.outcomes[0] if same else "unequal", _cold(answers))


def _cold(value: Any) -> Any:
    """Without cached tokens: what is in a cache depends on what was asked before."""
    if isinstance(value, dict):
        return {k: "*" if k == "cached_tokens" else _cold(v) for k, v in value.items()}
    return [_cold(item) for item in value] if isinstance(value, (list, tuple)) else value


TOOL_CALL = Row(
    "Tool call (parser on the card), whole and streamed", ("parsed in both", "not parsed")
)


async def tool_call(site: Site) -> Seen:
    answers = await both(site, f"say<<{_CALL}>>", tools=_TOOLS, max_tokens=90)
    choice = answers[0][1]["choices"][0]
    calls = [choice["message"].get("tool_calls") or ()]
    calls.append([call for delta in deltas(answers[1]) for call in delta.get("tool_calls") or ()])
    found = all(
        [c["function"]["name"] for c in one if c["function"].get("name")] == ["look_up"]
        for one in calls
    )
    right = found and choice["finish_reason"] == "tool_calls"
    return Seen(TOOL_CALL.outcomes[0 if right else 1], _cold(answers))


TOOL_CHOICE = Row(
    "`tool_choice` none, required and by name, whole and streamed", ("answered as the model does",)
)


async def tool_choice(site: Site) -> Seen:
    named = {"type": "function", "function": {"name": "look_up"}}
    said = {"word": "queue"}
    cases = (
        ("none", _CALL),
        ("required", json.dumps([{"name": "look_up", "parameters": said}])),
        (named, json.dumps(said)),
    )
    answers = []
    for choice, answer in cases:
        more = {"tools": _TOOLS, "tool_choice": choice, "max_tokens": 90}
        answers += await both(site, f"say<<{answer}>>", **more)
    good = {status for status, _ in answers} == {200}
    return Seen(TOOL_CHOICE.outcomes[0] if good else statuses(answers), _cold(answers))


REASONING = Row("Reasoning parser on the card, whole and streamed", ("split off", "left in"))


async def reasoning(site: Site) -> Seen:
    answers = await both(site, "say<<<think>hm</think>yes>>", max_tokens=40)
    split = [text_of(answer) for answer in answers] == ["yes", "yes"]
    return Seen(REASONING.outcomes[0 if split else 1], _cold(answers))


GUIDED = Row(
    "Guided decoding and `response_format`", ("reach the engine", "do not reach the engine")
)


async def guided(site: Site) -> Seen:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
    cases: tuple[dict[str, Any], ...] = (
        {"guided_regex": "[ab]{6}"},
        {"guided_json": _SCHEMA},
        {"guided_choice": ["yes", "no"]},
        {"response_format": schema},
    )
    ask = "tell<<sampling_options.guided_decoding>>"
    answers = [await site.chat(ask, max_tokens=300, **case) for case in cases]
    told = [text_of(answer) for answer in answers]
    arrived = all(text and text != "null" for text in told)
    return Seen(GUIDED.outcomes[0 if arrived else 1], _cold(answers))


SEQUENCES = Row(
    "`n` = 2",
    (
        "two answers, nothing stays pinned",
        "two answers; a sibling's blocks stay pinned until the lease ends",
    ),
)


async def sequences(site: Site) -> Seen:
    answer = await site.chat(f"two of {_PROMPT}", n=2, max_tokens=12)
    texts = [choice["message"]["content"] for choice in answer[1]["choices"]]
    if len(texts) != 2 or {len(text) for text in texts} != {12}:
        return Seen("not two answers")
    return Seen(SEQUENCES.outcomes[0 if await site.free_within(1.0) else 1], _cold(answer))


LOGPROBS = Row("Log probabilities, whole and streamed", ("given for every token", "missing"))


async def logprobs(site: Site) -> Seen:
    answers = await both(site, _PROMPT, logprobs=True, top_logprobs=2, max_tokens=6)
    body = {"prompt": _PROMPT, "max_tokens": 6, "logprobs": 2}
    answers.append(await site.post("/v1/completions", body))
    given = answers[0][1]["choices"][0].get("logprobs") or {}
    whole = len(given.get("content") or ()) == 6
    return Seen(LOGPROBS.outcomes[0 if whole else 1], _cold(answers))


USAGE = Row(
    "Usage and cached tokens, whole and streamed", ("counted, the second round's prefix as cached",)
)


async def usage(site: Site) -> Seen:
    """Two rounds of a session; the counts themselves must equal stock's."""
    answers = []
    for name, more in (("whole", {}), ("streamed", _STREAM)):
        for tail in ("", " and then?"):
            content = f"usage {name} {_PROMPT}{tail}"
            answers.append(await site.chat(content, session=f"usage {name}", max_tokens=6, **more))
    counts = [_usage_of(answer) for answer in answers]
    cached = [(count.get("prompt_tokens_details") or {}).get("cached_tokens") for count in counts]
    good = all(c.get("completion_tokens") == 6 for c in counts)
    good = good and not any(cached[::2]) and all(cached[1::2])
    return Seen(USAGE.outcomes[0] if good else f"cached {cached}", counts)


def _usage_of(answer: Answer) -> dict[str, Any]:
    events = answer[1] if isinstance(answer[1], list) else [answer[1]]
    found = [e["usage"] for e in events if isinstance(e, dict) and e.get("usage")]
    return found[-1] if found else {}


TOO_LONG = Row("Prompt over the card's context length", ("HTTP 400",))


async def too_long(site: Site) -> Seen:
    content = "x" * (CONTEXT_TOKENS + 100)
    answers = [await site.chat(content), await site.post("/v1/completions", {"prompt": content})]
    return Seen(statuses(answers), answers)


UNKNOWN = Row("Unknown model", ("HTTP 404",))


async def unknown(site: Site) -> Seen:
    status, body = await site.chat("anybody?", model="equilibrium/nobody")
    return Seen(f"HTTP {status}", body)


BAD = Row("Parameters out of range", ("HTTP 400",))


async def bad(site: Site) -> Seen:
    cases: tuple[dict[str, Any], ...] = ({"max_tokens": -1}, {"temperature": 9}, {"n": 0})
    answers = [await site.chat("anybody?", **case) for case in cases]
    return Seen(statuses(answers), answers)


PROBES = (
    (PLAIN, plain),
    (TOOL_CALL, tool_call),
    (TOOL_CHOICE, tool_choice),
    (REASONING, reasoning),
    (GUIDED, guided),
    (SEQUENCES, sequences),
    (LOGPROBS, logprobs),
    (USAGE, usage),
    (TOO_LONG, too_long),
    (UNKNOWN, unknown),
    (BAD, bad),
)
