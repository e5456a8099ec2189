# SPDX-License-Identifier: Apache-2.0
"""Deployments that are not whole: no prefill worker at all, workers that run already."""

import asyncio
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


async def test_a_deployment_without_prefill_workers_serves(launch):
    async with launch(prefill__workers=0) as it:
        answer = await it.chat("nobody prefills for me", max_tokens=6)
        assert answer["status"] == 200
        assert answer["usage"]["completion_tokens"] == 6
        assert [d["reason"] for d in it.decisions()] == ["prefill_pool_empty"]


async def test_prefill_workers_that_come_later_are_used(launch, tmp_path):
    async with launch(prefill__workers=0) as it:
        assert (await it.chat("first", max_tokens=2))["status"] == 200
        folder = it.deployment.run_dir
        command = [sys.executable, "-m", "controller", "worker", "--role", "prefill"]
        environ = os.environ | it.deployment.client_env
        environ |= {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
        }
        with subprocess.Popen(
            [*command, "--config", str(folder / "config.yaml"), "--run-dir", str(tmp_path)],
            env=environ,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                for number in range(200):
                    assert (await it.chat(f"later {number}", max_tokens=2))["status"] == 200
                    if it.decisions()[-1]["place"] == "remote":
                        break
                    await asyncio.sleep(0.2)  # a worker takes seconds to load and register
                else:
                    pytest.fail("the new prefill worker was never used")
            finally:
                worker.terminate()


async def test_another_launcher_can_attach_to_workers_that_run(launch, tmp_path):
    async with launch(router__attachment="broker") as workers:
        kv = str(workers.deployment.run_dir / "discovery")
        async with launch(
            dynamo__file_kv=kv,
            prefill__engine="external",
            decode__engine="external",
            router__attachment="none",
        ) as attached:
            assert (await attached.chat("through the second frontend"))["status"] == 200
        # The one that only attached took nothing of the other down.
        assert (await workers.chat("still there"))["status"] == 200
