# SPDX-License-Identifier: Apache-2.0
"""From stock to our router and back on a running deployment under load: no request fails.

The steps are those an operator takes: the router joins in shadow as one more prefill component,
the prefill workers move behind it one at a time, it acts, and back again.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time

import pytest
import yaml

from analysis.shadow_report import shadow_report
from controller.runtime.router.mode import Mode, set_mode

pytestmark = pytest.mark.e2e


class Processes:
    """Component processes beside a deployment, on its discovery folder."""

    def __init__(self, it, folder):
        self._it = it
        self._folder = folder
        self._running = {}
        run_dir = it.deployment.run_dir
        self._environ = (
            os.environ
            | it.deployment.client_env
            | {
                "DYN_DISCOVERY_BACKEND": "file",
                "DYN_FILE_KV": str(run_dir / "discovery"),
                "DYN_REQUEST_PLANE": "tcp",
                "DYN_EVENT_PLANE": "zmq",
                "DYN_TCP_RPC_HOST": "127.0.0.1",
                "DYN_LOG": "warn",
            }
        )
        stock = yaml.safe_load((run_dir / "config.yaml").read_text())
        ours = stock | {"router": {"attachment": "broker", "mode": "shadow"}}
        self._configs = {"stock": stock, "ours": ours}

    def start(self, name, kind, *arguments):
        folder = self._folder / name
        folder.mkdir()
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(self._configs[kind]))
        log = (folder / "log").open("w")
        self._running[name] = subprocess.Popen(
            [sys.executable, "-m", "controller", *arguments, "--config", str(config)],
            env=self._environ,
            stdout=log,
            stderr=log,
        )
        return folder

    async def end(self, name):
        """SIGTERM: deregister, let what runs end."""
        process = self._running.pop(name)
        process.terminate()
        await asyncio.to_thread(process.wait, 15)

    def close(self):
        for process in self._running.values():
            process.kill()


async def until(condition, what, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def load(it, answers, rate=6.0):
    """Open-loop requests until the block ends; all of them are awaited."""
    stop = asyncio.Event()
    tasks = []

    async def send():
        while not stop.is_set():
            prompt = f"{len(tasks)} " + "swap " * 150
            tasks.append(asyncio.create_task(it.chat(prompt, max_tokens=25)))
            await asyncio.sleep(1 / rate)

    sender = asyncio.create_task(send())
    try:
        yield
    finally:
        stop.set()
        await sender
        answers += await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def test_swap_in_and_out_under_load_without_a_failed_request(launch, tmp_path):
    answers = []
    async with launch(router__attachment="none", decode__workers=2) as it:
        processes = Processes(it, tmp_path)
        try:
            async with load(it, answers):
                await asyncio.sleep(2)
                # in: the router joins, a prefill worker stands behind it, the old one leaves
                processes.start("hidden", "ours", "worker", "--role", "prefill", "--index", "10")
                router = processes.start("router", "ours", "router")
                await until((router / "router.json").exists, "the router did not come up")
                await asyncio.sleep(2)
                it.deployment.process("prefill-0").signal(15)
                log = router / "decisions.jsonl"
                await until(lambda: log.read_text().count("would_place") > 12, "not in shadow")
                set_mode(router, Mode.ACT)
                await until(lambda: log.read_text().count("prefill_slack") > 30, "not acting")
                report = shadow_report(log.read_text().splitlines())
                # out: a worker at the stock place, then the router leaves
                processes.start("back", "stock", "worker", "--role", "prefill", "--index", "11")
                await asyncio.sleep(4)
                await processes.end("router")
                await processes.end("hidden")
                await asyncio.sleep(3)
        finally:
            processes.close()
    assert report.requests > 12
    bad = [(i, a) for i, a in enumerate(answers) if a["status"] != 200]
    assert not bad, f"{len(bad)} of {len(answers)}: {bad[:3]}"
    assert len(answers) > 60
