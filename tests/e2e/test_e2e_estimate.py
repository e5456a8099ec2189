# SPDX-License-Identifier: Apache-2.0
"""`equilibrium estimate` and `doctor` on live deployments: stock mockers, ours with a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from estimate_kit import prometheus, steady_load, with_metrics
from up_kit import make_config

from controller.runtime.launcher import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


async def command(*words: str, code: int = 0) -> str:
    """The output of `equilibrium ...`."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "controller", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


LOOK = ("--interval", "1", "--looks", "8")
WARM_S = 6.0


async def test_a_stock_deployment_is_estimated_and_both_sources_agree(tmp_path):
    ports: dict[str, int] = {}
    config = make_config(tmp_path, router__attachment="none", decode__workers=2)
    async with Deployment.start(config, plan=with_metrics(ports, stock=True)) as it:
        targets = [f"127.0.0.1:{port}" for port in ports.values()]
        everybody = [it.url.removeprefix("http://"), *targets]
        idle = json.loads(await command("estimate", "--url", it.url, "--looks", "2", "--json",
                                        "--interval", "1"))  # fmt: skip
        assert idle["regime"]["regime"] == "idle" and idle["no_traffic_yet"]
        with contextlib.ExitStack() as stack:
            async with steady_load(it.url):
                await asyncio.sleep(WARM_S)
                # Only now: Prometheus looks back, and would see a time without load.
                server = await asyncio.to_thread(
                    stack.enter_context, prometheus(tmp_path / "prometheus", everybody)
                )
                await asyncio.sleep(2.0)
                named = [word for target in targets for word in ("--target", target)]
                scraped, asked = await asyncio.gather(
                    command("estimate", "--url", it.url, *named, "--json", *LOOK),
                    command("estimate", "--url", it.url, "--prometheus", server, "--json", *LOOK),
                )
                said = await command("doctor", "--url", it.url, *named, *LOOK)
        one, other = json.loads(scraped), json.loads(asked)
    for found in (one, other):
        assert found["regime"]["regime"] == "below", found["regime"]
        assert found["pools"]["prefill"]["workers"] == 1
        assert found["pools"]["decode"]["workers"] == 2
        assert len(found["pools"]["decode"]["served_by"]) == 2
        assert found["failures"] == {} and found["stale"] == {}
    for name in ("started_per_s", "prefill.served_per_s", "decode.served_per_s"):
        here, there = one["readings"][name]["value"], other["readings"][name]["value"]
        assert here == pytest.approx(there, rel=0.35), name
    assert "1 prefill, 2 decode workers" in said


async def test_our_deployment_is_estimated_with_its_routing_loss(tmp_path):
    ports: dict[str, int] = {}
    config = make_config(tmp_path, prefill__workers=2, decode__workers=2)
    async with Deployment.start(config, plan=with_metrics(ports, stock=False)) as it:
        run_dir = str(it.run_dir)
        names = [name for name in ports if name != "router"]
        workers = [f"127.0.0.1:{ports[name]}" for name in names]
        router = json.loads((it.run_dir / "router.json").read_text())["metrics_port"]
        everybody = [it.url.removeprefix("http://"), f"127.0.0.1:{router}", *workers]
        named = [word for target in workers for word in ("--target", target)]
        with contextlib.ExitStack() as stack:
            async with steady_load(it.url):
                await asyncio.sleep(WARM_S)
                # Only now: Prometheus looks back, and would see a time without load.
                server = await asyncio.to_thread(
                    stack.enter_context, prometheus(tmp_path / "prometheus", everybody)
                )
                await asyncio.sleep(2.0)
                scraped, asked = await asyncio.gather(
                    command("estimate", "--run-dir", run_dir, *named, "--forward-passes", "--json",
                            "--profile", "dense70b_tp4", *LOOK),
                    command("estimate", "--run-dir", run_dir, "--prometheus", server, "--json",
                            *LOOK),
                )  # fmt: skip
                lines = await command("estimate", "--run-dir", run_dir, *named, *LOOK)
        one, other = json.loads(scraped), json.loads(asked)
    for found in (one, other):
        assert found["regime"]["regime"] == "below", found["regime"]
        # The broker stands in for the prefill component; it is no prefill worker.
        assert found["pools"]["prefill"]["workers"] == 2
        assert len(found["pools"]["prefill"]["served_by"]) == 2
    assert one["readings"]["prefill.utilisation"]["value"] > 0
    here, there = (f["readings"]["prefill.served_per_s"]["value"] for f in (one, other))
    assert here == pytest.approx(there, rel=0.35)
    loss = one["routing"]["prefill_latency"]
    assert loss["windows"] > 3 and loss["ratio"] >= 1.0
    assert one["routing"]["binding_latency"]["ratio"] >= 1.0
    assert "poa_frozen" in lines and "ttft mean" in lines.lower()


async def test_a_deployment_that_is_not_there_is_unknown_not_idle(tmp_path):
    out = await command("estimate", "--url", "http://127.0.0.1:9", "--json", "--looks", "2",
                        "--interval", "0.2", code=1)  # fmt: skip
    found = json.loads(out)
    assert found["regime"]["regime"] == "unknown"
    assert found["failures"]
