# SPDX-License-Identifier: Apache-2.0
"""Clients that we did not write, through the stock frontend and our router."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import openai
import pytest

pytestmark = pytest.mark.e2e

PROMPT = "tell me about queues " * 40


async def test_the_openai_package_works_unchanged(launch):
    async with launch() as it:
        client = openai.AsyncOpenAI(base_url=f"{it.url}/v1", api_key="none")
        messages = [{"role": "user", "content": PROMPT}]
        chat = {"model": "equilibrium/tiny", "messages": messages, "max_tokens": 12}
        whole = await client.chat.completions.create(**chat)
        stream = await client.chat.completions.create(
            **chat, stream=True, stream_options={"include_usage": True}
        )
        pieces, usage = [], None
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        assert "".join(pieces) == whole.choices[0].message.content
        assert whole.usage.completion_tokens == usage.completion_tokens == 12
        assert whole.choices[0].finish_reason == "length"

        text = {"model": "equilibrium/tiny", "prompt": PROMPT, "max_tokens": 9}
        completion = await client.completions.create(**text)
        parts = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(**text, stream=True)
            if chunk.choices
        ]
        assert "".join(parts) == completion.choices[0].text
        assert len(completion.choices[0].text) == 9
        several = await client.chat.completions.create(**chat, n=2)
        assert [choice.index for choice in several.choices] == [0, 1]
        assert all(len(choice.message.content) == 12 for choice in several.choices)
        await client.close()


async def test_local_remote_and_stock_give_the_same_answer(launch):
    answers = {}
    for name, changes in {
        "stock": {"router__attachment": "none"},
        "remote": {"router__policy": "always_remote"},
        "local": {"router__policy": "always_local"},
    }.items():
        async with launch(**changes) as it:
            answer = await it.chat(PROMPT, max_tokens=24)
            answers[name] = answer["choices"][0]["message"]["content"]
            if name != "stock":
                assert [d["place"] for d in it.decisions()] == [name]
    assert answers["stock"] == answers["remote"] == answers["local"]


async def test_decisions_are_counted_by_decision_and_reason_and_sum_to_the_requests(launch):
    async with launch() as it:
        await asyncio.gather(*(it.chat(f"{i} {PROMPT}", max_tokens=4) for i in range(10)))
        await it.chat("several", n=2)
        metrics = await it.router_metrics()
        counts = {
            line.split("{")[1].split("}")[0]: float(line.rsplit(" ", 1)[1])
            for line in metrics.splitlines()
            if line.startswith("dynamo_equilibrium_route_decisions_total{")
        }
        assert sum(counts.values()) == 11
        assert counts['decision="local",policy="ampd",reason="multiple_sequences"'] == 1
        assert len(it.decisions()) == 11


async def test_ampd_sees_the_decode_side_through_forward_pass_metrics(launch):
    # No prefill worker ever has slack at alpha ~ 0. The decode worker's windowed ITL is about
    # 15 ms: slack at beta * 50 ms = 45 ms, none at 5 ms, where Eq. 1 and Eq. 2 are compared.
    for beta, reasons in ((0.9, {"decode_slack"}), (0.1, {"argmin_local", "argmin_remote"})):
        async with launch(router__alpha=1e-6, router__beta=beta) as it:
            await it.chat("first: fills the windows", max_tokens=30)
            await asyncio.sleep(0.3)
            await it.chat(PROMPT, max_tokens=4)
            assert it.decisions()[-1]["reason"] in reasons


async def test_later_rounds_hit_the_prefix_cache(launch):
    async with launch() as it:
        await it.chat(PROMPT, max_tokens=4)
        await asyncio.sleep(0.5)  # KV events travel
        await it.chat(PROMPT, max_tokens=4)
        first, second = it.decisions()
        assert first["cached_tokens"] == 0
        assert second["cached_tokens"] >= 0.8 * second["prompt_tokens"]


def aiperf() -> str | None:
    own = Path(__file__).parents[2] / ".venv-aiperf" / "bin" / "aiperf"
    named = os.environ.get("EQUILIBRIUM_AIPERF")
    return named or (str(own) if own.exists() else shutil.which("aiperf"))


@pytest.mark.skipif(aiperf() is None, reason="aiperf is not installed (EQUILIBRIUM_AIPERF)")
async def test_aiperf_works_unchanged(launch, tmp_path):
    async with launch() as it:
        command = [
            aiperf(), "profile", "--model", "equilibrium/tiny", "--tokenizer", "equilibrium/tiny",
            "--url", it.url, "--endpoint-type", "chat", "--streaming",
            "--synthetic-input-tokens-mean", "300", "--output-tokens-mean", "20",
            "--concurrency", "4", "--request-count", "24", "--ui", "simple",
            "--artifact-dir", str(tmp_path / "aiperf"),
        ]  # fmt: skip
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            env=os.environ | it.deployment.client_env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        # aiperf may send a few more than counted (warm-up); none may have failed.
        assert len(it.decisions()) >= 24
        assert {d["outcome"] for d in it.decisions()} <= {"handed_over", "local"}
