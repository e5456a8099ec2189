# SPDX-License-Identifier: Apache-2.0
"""Life and death of processes, with stand-ins instead of Dynamo."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from launcher_kit import (
    external_config,
    free_port,
    frontend,
    mentioning,
    python,
    running,
    stubborn_family,
    wait_for,
    worker,
)

from controller.config import DeploymentConfig
from controller.runtime.launcher import Deployment, LaunchError, ProcessSpec, Role, State

pytestmark = pytest.mark.integration
Plan = Callable[[DeploymentConfig, Path], Sequence[ProcessSpec]]


class Bench:
    """A fake frontend on a free port, a journal of SIGTERMs, the lines that were reported."""

    def __init__(self, base: Path) -> None:
        self.base, self.port, self.journal = base, free_port(), base / "journal"
        self.lines: list[str] = []
        self.config = external_config(base, self.port)

    def plan(self, *others: ProcessSpec, models: Sequence[str] = ()) -> Plan:
        return lambda config, run_dir: (frontend(self.port, self.journal, *models), *others)

    def stops(self) -> list[str]:
        return self.journal.read_text().split() if self.journal.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_for, condition)


async def test_deployment_is_up_inside_the_block_and_gone_after_it(bench: Bench) -> None:
    plan = bench.plan(worker("decode-0", bench.journal))
    async with Deployment.start(bench.config, plan=plan, report=bench.lines.append) as deployment:
        pids = [entry.pid or 0 for entry in deployment.status()]
        assert running(pids) == pids
        assert {entry.state for entry in deployment.status()} == {State.RUNNING}
        table = json.loads((deployment.run_dir / "processes.json").read_text())
        assert [row["pid"] for row in table["processes"]] == pids
        assert deployment.url == f"http://127.0.0.1:{bench.port}"
        assert deployment.client_env["HF_HOME"] == str(deployment.run_dir / "hf")
        await until(lambda: "up" in deployment.process("decode-0").log_path.read_text())
    assert running(pids) == []
    assert mentioning(str(deployment.run_dir)) == []
    assert {entry.state for entry in deployment.status()} == {State.ENDED}


async def test_workers_and_router_stop_before_the_frontend(bench: Bench) -> None:
    names = ("router", "prefill-0", "decode-0")
    others = [worker(name, bench.journal) for name in names]
    async with Deployment.start(bench.config, plan=bench.plan(*others)) as deployment:
        for name in names:
            log = deployment.process(name).log_path
            await until(lambda log=log: "up" in log.read_text())  # type: ignore[misc]
    assert sorted(bench.stops()[:3]) == sorted(names)
    assert bench.stops()[3:] == ["frontend"]


async def test_process_that_ends_early_fails_the_start_with_its_last_words(bench: Bench) -> None:
    script = "import sys; print('\\x1b[31mno GPU here\\x1b[0m'); sys.exit(3)"
    broken = ProcessSpec(name="decode-0", role=Role.DECODE, argv=python(script))
    slow = worker("decode-1", bench.journal, endpoint="d.backend.generate", instances=1)
    with pytest.raises(LaunchError) as caught:
        async with Deployment.start(bench.config, plan=bench.plan(slow, broken)):
            pytest.fail("must not come up")
    message = str(caught.value)
    assert message.startswith("decode-0 ended during start-up (exit code 3)")
    assert message.endswith("\n    no GPU here")
    assert mentioning(str(bench.base / "runs")) == []


async def test_program_that_does_not_exist_says_so(bench: Bench) -> None:
    broken = ProcessSpec(name="decode-0", role=Role.DECODE, argv=("/no/such/python",))
    waiting = dataclasses.replace(broken, endpoint="d.backend.generate", instances=1)
    with pytest.raises(LaunchError, match="cannot start /no/such/python: No such file"):
        async with Deployment.start(bench.config, plan=bench.plan(waiting)):
            pytest.fail("must not come up")


async def test_start_that_never_gets_ready_says_what_is_missing(bench: Bench) -> None:
    config = bench.config.model_copy(update={"ready_timeout_s": 1.5})
    silent = worker("decode-0", bench.journal, endpoint="d.backend.generate", instances=2)
    with pytest.raises(LaunchError) as caught:
        async with Deployment.start(config, plan=bench.plan(silent)):
            pytest.fail("must not come up")
    assert "not ready after 1.5 s (ready_timeout_s): 0 of 2 decode workers" in str(caught.value)
    assert "logs/decode-0.log" in str(caught.value)
    assert mentioning(str(bench.base / "runs")) == []


async def test_router_is_restarted_until_its_limit_and_the_rest_stays_up(bench: Bench) -> None:
    router = worker("router", bench.journal, Role.ROUTER, restart_limit=1)
    plan = bench.plan(router)
    async with Deployment.start(bench.config, plan=plan, report=bench.lines.append) as deployment:
        first = deployment.process("router").pid
        os.kill(first or 0, signal.SIGKILL)
        await until(lambda: deployment.process("router").pid != first)
        second = deployment.process("router").pid
        assert deployment.status()[1].state is State.RUNNING
        assert deployment.status()[1].restarts == 1
        os.kill(second or 0, signal.SIGKILL)
        await until(lambda: deployment.status()[1].state is State.ENDED)
        await until(lambda: any("the rest stays up" in line for line in bench.lines))
        assert deployment.process("frontend").alive
    assert [line for line in bench.lines if "restart 1 of 1" in line]


async def test_worker_death_is_reported_and_survived(bench: Bench) -> None:
    plan = bench.plan(worker("decode-0", bench.journal))
    async with Deployment.start(bench.config, plan=plan, report=bench.lines.append) as deployment:
        os.kill(deployment.process("decode-0").pid or 0, signal.SIGKILL)
        await until(lambda: deployment.status()[1].state is State.ENDED)
        await until(lambda: len(bench.lines) == 3)
        assert bench.lines[-1].startswith("decode-0 died (killed by SIGKILL); the rest stays up")
        assert deployment.process("frontend").alive


async def test_frontend_death_ends_the_deployment(bench: Bench) -> None:
    plan = bench.plan(worker("decode-0", bench.journal))
    async with Deployment.start(bench.config, plan=plan) as deployment:
        os.kill(deployment.process("frontend").pid or 0, signal.SIGKILL)
        reason = await asyncio.wait_for(deployment.failed(), 5)
    assert reason.startswith("frontend ended (killed by SIGKILL)")


async def test_stubborn_family_is_killed_after_the_bound(bench: Bench) -> None:
    pid_file = bench.base / "child"
    plan = bench.plan(stubborn_family("decode-0", pid_file))
    async with Deployment.start(
        bench.config, plan=plan, report=bench.lines.append, stop_timeout_s=0.5
    ) as deployment:
        await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        pids = [deployment.process("decode-0").pid or 0, int(pid_file.read_text())]
    assert running(pids) == []
    assert "decode-0 did not stop within 0.5 s: killed" in bench.lines


async def test_children_of_a_dead_worker_do_not_stay_behind(bench: Bench) -> None:
    pid_file = bench.base / "child"
    plan = bench.plan(stubborn_family("decode-0", pid_file))
    async with Deployment.start(bench.config, plan=plan) as deployment:
        await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        os.kill(deployment.process("decode-0").pid or 0, signal.SIGKILL)
        await until(lambda: running([int(pid_file.read_text())]) == [])


async def test_second_cancellation_kills_at_once(bench: Bench) -> None:
    pid_file = bench.base / "child"
    plan = bench.plan(stubborn_family("decode-0", pid_file))

    async def hold() -> None:
        async with Deployment.start(bench.config, plan=plan, stop_timeout_s=60):
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await until(lambda: pid_file.exists() and bool(pid_file.read_text()))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    task.cancel()
    await asyncio.sleep(0.5)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 10
    assert mentioning(str(bench.base / "runs")) == []


async def test_cancelled_start_leaves_nothing(bench: Bench) -> None:
    silent = worker("decode-0", bench.journal, endpoint="d.backend.generate", instances=1)

    async def hold() -> None:
        async with Deployment.start(bench.config, plan=bench.plan(silent)):
            pytest.fail("must not come up")

    for delay_s in (0.0, 0.01, 0.03, 0.1, 0.5):
        task = asyncio.create_task(hold())
        await asyncio.sleep(delay_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert mentioning(str(bench.base / "runs")) == [], delay_s


async def test_report_that_cannot_be_written_does_not_stop_the_stop(bench: Bench) -> None:
    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    plan = bench.plan(worker("decode-0", bench.journal))
    async with Deployment.start(bench.config, plan=plan, report=closed) as deployment:
        pass
    assert mentioning(str(deployment.run_dir)) == []


async def test_later_stages_wait_for_the_earlier_ones(bench: Bench) -> None:
    # The fake frontend never lists an instance, so that stage 1 must not begin.
    config = bench.config.model_copy(update={"ready_timeout_s": 1.0})
    wanted = {"endpoint": "d.prefill.generate", "instances": 1}
    first = worker("prefill-0", bench.journal, Role.PREFILL, **wanted)
    second = worker("decode-0", bench.journal, stage=1)
    with pytest.raises(LaunchError, match="0 of 1 prefill worker"):
        async with Deployment.start(
            config, plan=bench.plan(first, second), report=bench.lines.append
        ):
            pytest.fail("must not come up")
    assert not [line for line in bench.lines if "decode-0" in line]
