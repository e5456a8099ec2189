# SPDX-License-Identifier: Apache-2.0
"""What a restarted process's predecessor had registered is taken away, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from launcher_kit import external_config, free_port, frontend, wait_for, worker

from controller.runtime.launcher import Deployment, Role
from controller.runtime.launcher.discovery_files import forget_dead

pytestmark = pytest.mark.integration


def register(root: Path, name: str, port: int) -> None:
    text = json.dumps({"transport": {"tcp": f"127.0.0.1:{port}/1/generate"}})
    for bucket in ("instances", "mdc"):
        (root / "v1" / bucket).mkdir(parents=True, exist_ok=True)
        (root / "v1" / bucket / name).write_text(text)


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_only_refusing_instances_of_the_endpoint_are_forgotten(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        register(tmp_path, "d%2Fprefill%2Fgenerate%2Fa1", free_port())
        register(tmp_path, "d%2Fprefill%2Fgenerate%2Fa2", server.getsockname()[1])
        register(tmp_path, "d%2Dprefill%2Fprefill%2Fgenerate%2Fa3", free_port())
        assert forget_dead(tmp_path, "d.prefill.generate") == 1
    left = ["d%2Dprefill%2Fprefill%2Fgenerate%2Fa3", "d%2Fprefill%2Fgenerate%2Fa2"]
    assert entries(tmp_path) == sorted(left * 2)


def test_names_with_dashes_are_decoded(tmp_path: Path) -> None:
    register(tmp_path, "d%2Dprefill%2Fprefill%2Fgenerate%2Fa3", free_port())
    assert forget_dead(tmp_path, "d-prefill.prefill.generate") == 1
    assert entries(tmp_path) == []


def test_the_cards_of_its_lora_adapters_go_with_it(tmp_path: Path) -> None:
    name = "d%2Fprefill%2Fgenerate%2Fa"
    register(tmp_path, name, free_port())
    for card in (f"{name}%2Fpoet", f"{name}1%2Fpoet"):
        (tmp_path / "v1" / "mdc" / card).write_text("{}")
    assert forget_dead(tmp_path, "d.prefill.generate") == 1
    assert entries(tmp_path) == [f"{name}1%2Fpoet"]


def test_entries_that_we_do_not_understand_are_left_alone(tmp_path: Path) -> None:
    register(tmp_path, "d%2Fprefill%2Fgenerate%2Fa1", free_port())
    for bucket in ("instances", "mdc"):
        (tmp_path / "v1" / bucket / "d%2Fprefill%2Fgenerate%2Fa1").write_text('{"transport": 1}')
    assert forget_dead(tmp_path, "d.prefill.generate") == 0
    assert forget_dead(tmp_path / "missing", "d.prefill.generate") == 0
    assert len(entries(tmp_path)) == 2


async def test_restart_of_a_killed_router_clears_its_entry(tmp_path: Path) -> None:
    port, journal = free_port(), tmp_path / "journal"
    # No endpoint is expected at the start: the stand-in registers nothing by itself.
    endpoint = "dynamo.prefill.generate"
    router = worker("router", journal, Role.ROUTER, restart_limit=1, endpoint=endpoint)
    config = external_config(tmp_path, port)
    async with Deployment.start(
        config, plan=lambda config, run_dir: (frontend(port, journal), router)
    ) as deployment:
        root = deployment.run_dir / "discovery"
        register(root, "dynamo%2Fprefill%2Fgenerate%2Fa1", free_port())
        os.kill(deployment.process("router").pid or 0, signal.SIGKILL)
        assert await asyncio.to_thread(wait_for, lambda: entries(root) == [])
