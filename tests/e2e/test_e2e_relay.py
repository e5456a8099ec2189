# SPDX-License-Identifier: Apache-2.0
"""The relay attachment on whole deployments, beside stock Dynamo and the broker."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from random import Random

import aiohttp
import openai
import pytest

from controller.runtime.emulated.loads import engine_loads, wait_for_loads

pytestmark = pytest.mark.e2e

MODEL = "equilibrium/tiny"
PROMPT = "tell me about queues " * 40
STREAMS, TOKENS = 20, 120
OUTCOMES = {}
"""What `test_streams_of_a_killed_decode_worker` saw, by attachment."""


def body(content, max_tokens, **fields):
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens} | fields


async def stream(it, content, max_tokens=TOKENS, **fields):
    """A streamed chat: its text, how it finished and its usage; what broke is not there."""
    request = body(content, max_tokens, stream=True, stream_options={"include_usage": True})
    answer = {"text": "", "finish": None, "usage": None}
    with contextlib.suppress(aiohttp.ClientError):
        async with it.http.post(f"{it.url}/v1/chat/completions", json=request | fields) as got:
            async for line in got.content:
                data = line.decode().removeprefix("data: ").strip()
                if not data.startswith("{"):
                    continue
                chunk = json.loads(data)
                for choice in chunk.get("choices", ()):
                    answer["text"] += choice["delta"].get("content") or ""
                    answer["finish"] = choice["finish_reason"] or answer["finish"]
                answer["usage"] = chunk.get("usage") or answer["usage"]
    return answer


def whole(answer, max_tokens=TOKENS):
    return answer["finish"] == "length" and len(answer["text"]) == max_tokens


async def counter(it, name):
    lines = (await it.router_metrics()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("attachment", ["none", "broker", "relay"])
async def test_streams_of_a_killed_decode_worker(launch, attachment):
    changes = {"decode__workers": 2, "frontend__migration_limit": 3}
    async with launch(router__attachment=attachment, **changes) as it:
        reference = await it.chat(PROMPT, max_tokens=24)
        running = [asyncio.create_task(stream(it, f"{i} {PROMPT}")) for i in range(STREAMS)]
        await asyncio.sleep(1.2)
        os.kill(it.deployment.process("decode-0").pid, signal.SIGKILL)
        answers = await asyncio.wait_for(asyncio.gather(*running), 20)
        OUTCOMES[attachment] = {
            "reference": reference["choices"][0]["message"]["content"],
            "saved": sum(map(whole, answers)),
            "texts": [answer["text"] for answer in answers],
        }
        if attachment != "relay":
            return
        # Stock counts the tokens that were generated before the kill as prompt.
        lengths = {len(f"user: {i} {PROMPT}\nassistant: ") for i in range(STREAMS)}
        assert {answer["usage"]["prompt_tokens"] for answer in answers} == lengths
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {TOKENS}
        moved = await counter(it, "dynamo_equilibrium_migrations_total")
        assert moved > 0
        assert sum(row["migrations"] > 0 for row in it.decisions()) == moved


def test_relay_saves_what_stock_saves_and_answers_the_same():
    if len(OUTCOMES) < 3:
        pytest.skip("needs the three deployments above")
    stock, broker, relay = (OUTCOMES[name] for name in ("none", "broker", "relay"))
    assert relay["saved"] == STREAMS
    assert relay["saved"] >= stock["saved"]
    # Behind a broker the frontend migrates, as in stock; it now and then loses a stream of its own
    # accord ("Request ... already exists" in its log), so the two may differ by a stream or two.
    assert broker["saved"] >= stock["saved"] - 2
    assert stock["reference"] == broker["reference"] == relay["reference"]
    # A saved stream says what it would have said: emulated answers depend on every KV block.
    for ours, theirs in zip(relay["texts"], stock["texts"], strict=True):
        assert ours == theirs or len(theirs) < TOKENS


@contextlib.asynccontextmanager
async def other_model(it):
    """A stock aggregated mocker of another model, beside the relay in its namespace."""
    hub = it.deployment.run_dir / "hf" / "hub"
    shutil.copytree(hub / "models--equilibrium--tiny", hub / "models--equilibrium--other")
    command = [sys.executable, "-m", "dynamo.mocker", "--model-path", "equilibrium/other"]
    run_dir = it.deployment.run_dir
    env = os.environ | it.deployment.client_env
    env |= {"DYN_FILE_KV": str(run_dir / "discovery"), "DYN_DISCOVERY_BACKEND": "file"}
    env |= {"DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq", "DYN_LOG": "warn"}
    env |= {"DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_SELF_HOST_METADATA": "0"}
    with (run_dir / "logs" / "mocker.log").open("wb") as log:
        mocker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield "equilibrium/other"
    finally:
        mocker.kill()
        mocker.wait()


async def listed(it, model):
    async with it.http.get(f"{it.url}/v1/models") as response:
        return model in [entry["id"] for entry in (await response.json())["data"]]


async def test_openai_clients_and_other_models_of_the_namespace_are_served(launch):
    async with launch(router__attachment="relay") as it, other_model(it) as other:
        client = openai.AsyncOpenAI(base_url=f"{it.url}/v1", api_key="none")
        chat = body(PROMPT, 12)
        once = await client.chat.completions.create(**chat)
        pieces, usage = [], None
        async for chunk in await client.chat.completions.create(
            **chat, stream=True, stream_options={"include_usage": True}
        ):
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        assert "".join(pieces) == once.choices[0].message.content
        assert once.usage.completion_tokens == usage.completion_tokens == 12
        several = await client.chat.completions.create(**chat, n=2)
        assert [choice.index for choice in several.choices] == [0, 1]
        assert all(len(choice.message.content) == 12 for choice in several.choices)
        text = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9)
        assert len(text.choices[0].text) == 9
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=MODEL, prompt=[97] * 140_000, max_tokens=2)
        while not await listed(it, other):
            await asyncio.sleep(0.1)
        answer = await client.chat.completions.create(**chat | {"model": other})
        assert answer.usage.completion_tokens == 12
        await client.close()
        reasons = [row["reason"] for row in it.decisions()]
        assert "multiple_sequences" in reasons


async def test_clients_that_leave_at_any_moment_pin_nothing(launch):
    changes = {"decode__workers": 2, "prefill__workers": 2}
    async with launch(router__attachment="relay", **changes) as it:
        rng = Random(11)

        async def leave(number):
            content = f"{number} " + "x" * rng.randrange(100, 3000)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stream(it, content, 400), rng.uniform(0.02, 1.2))

        for round_ in range(5):
            await asyncio.gather(*(leave(round_ * 30 + i) for i in range(30)))
        idle = await wait_for_loads(
            it.deployment.run_dir,
            lambda load: not (load.pinned_blocks or load.running_requests or load.waiting_requests),
        )
        assert set(idle) == {"prefill-0", "prefill-1", "decode-0", "decode-1"}
        for name, load in idle.items():
            assert (load.pinned_blocks, load.running_requests) == (0, 0), (name, load)
            assert load.free_blocks == 4096, (name, load)
        assert await counter(it, "dynamo_equilibrium_streams ") == 0
        assert (await it.chat("still here"))["status"] == 200


async def test_the_last_decode_worker_and_the_relay_itself_end(launch):
    async with launch(router__attachment="relay", router__restart_limit=0) as it:
        running = asyncio.create_task(stream(it, PROMPT))
        await asyncio.sleep(0.5)
        assert (await engine_loads(it.deployment.run_dir))["decode-0"].running_requests == 1
        # A relay that is told to end leaves discovery at once and lets its streams end.
        os.kill(it.deployment.process("router").pid, signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert (await it.chat("anyone?"))["status"] in (404, 503)
        assert not running.done()
        assert whole(await running)

    async with launch(router__attachment="relay") as it:
        os.kill(it.deployment.process("decode-0").pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert (await it.chat("anyone?"))["status"] == 503
        assert await listed(it, MODEL)
