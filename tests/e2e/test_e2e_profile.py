# SPDX-License-Identifier: Apache-2.0
"""A profile from nothing but a worker's ForwardPassMetrics, on live Dynamo."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.runtime.resources import read_profile

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


async def command(*arguments, env=None):
    """Run a Python command in the checkout; its standard output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()[-3000:] + out.decode()[-1000:]
    return out.decode()


@pytest.mark.parametrize("profile", ["dense70b_tp4", "llama31_70b_tp4_h100"])
async def test_two_minutes_of_traffic_give_the_profile_and_a_slowdown_is_followed(profile):
    # Five emulated seconds a wall second: two minutes of traffic pass in 24 s.
    out = await command(
        *("experiments/check_live_fit.py", "--seeds", "1"),
        *("--time-scale", "0.2", "--profile", profile),
    )
    figures = json.loads(out.splitlines()[-1])
    assert figures["max_pct"] <= 5.0
    assert figures["seconds_after_slowdown"] is not None
    assert figures["seconds_after_slowdown"] <= 60.0


async def test_workers_of_a_stock_deployment_are_followed_by_namespace(launch, tmp_path):
    async with launch(router__attachment="none") as it:
        discovery = {
            "DYN_FILE_KV": str(it.deployment.run_dir / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_LOG": "error",
        }
        out = tmp_path / "learned.json"
        listening = asyncio.create_task(
            command(
                *("-m", "controller", "profile", "live", "--namespace", "dynamo"),
                *("--name", "learned", "--duration", "9s", "--out", str(out)),
                *("--kv-from", "dense70b_tp4", "--gpu", "none", "--warm-up", "5"),
                env=discovery,
            )
        )
        number = itertools.count()
        while not listening.done():
            prompts = [f"{next(number)} " + "tell me about queues " * (5 * i) for i in range(1, 9)]
            await asyncio.gather(*(it.chat(prompt, max_tokens=20) for prompt in prompts))
        await listening
        learned, truth = read_profile(out), read_profile("dense70b_tp4")
        assert learned.model == "equilibrium/tiny" and learned.engine.block_size == 64
        for batch, context, chunk in ((1, 200, 0), (4, 1500, 0), (8, 4000, 0), (0, 0, 500)):
            pairs = chunk**2 / 2
            assert learned.cost_model().step_s(batch, context, chunk, pairs) == pytest.approx(
                truth.cost_model().step_s(batch, context, chunk, pairs), rel=0.05
            )
