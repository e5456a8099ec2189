# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are found before anything is started, each in one line with its key."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_kit import external_config, free_port

from controller.config import DeploymentConfig
from controller.errors import UserError
from controller.runtime.launcher import Deployment, plan_here
from controller.runtime.launcher.preflight import check, port_problem

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def checked(config: DeploymentConfig) -> None:
    check(config, plan_here(config, Path("/runs/r1")))


def config_with(tmp_path: Path, **fields: Any) -> DeploymentConfig:
    return external_config(tmp_path, free_port(), **fields)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_port_in_use_is_found_whatever_the_address(host: str) -> None:
    with listener() as port:
        assert "in use" in str(port_problem(host, port))


def test_free_port_and_impossible_host(tmp_path: Path) -> None:
    assert port_problem("127.0.0.1", free_port()) is None
    assert "cannot be used" in str(port_problem("192.0.2.77", 8000))


async def test_busy_port_stops_the_start_before_anything_exists(tmp_path: Path) -> None:
    with listener() as port:
        config = external_config(tmp_path, port)
        with pytest.raises(UserError) as caught:
            async with Deployment.start(config):
                pass
    assert str(caught.value).startswith(f"frontend.http_port: port {port} on 127.0.0.1 is in use")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_port_of_a_frontend_that_runs_already_is_not_checked(tmp_path: Path) -> None:
    with listener() as port:
        checked(external_config(tmp_path, port, frontend={"launch": False, "http_port": port}))


def test_busy_side_channel_names_its_pool(tmp_path: Path) -> None:
    with listener() as port:
        vllm = {"python": "/bin/true", "side_channel_port": port}
        config = config_with(tmp_path, decode={"engine": "vllm", "vllm": vllm})
        with pytest.raises(UserError, match=f"^decode.vllm.side_channel_port: port {port} "):
            checked(config)


def test_missing_engine_interpreter_is_named(tmp_path: Path) -> None:
    pool = {"engine": "vllm", "vllm": {"python": "no/such/python"}}
    with pytest.raises(UserError, match=r"^prefill.vllm.python: no/such/python is not"):
        checked(config_with(tmp_path, prefill=pool))


def test_unknown_profile_names_the_key_and_the_nearest_ones(tmp_path: Path) -> None:
    pool = {"engine": "emulated", "emulated": {"profile": "gtx"}}
    with pytest.raises(UserError, match=r"^decode.emulated.profile: .*gtx.*rtx4090"):
        checked(config_with(tmp_path, decode=pool))


def test_memory_discovery_is_refused_for_several_processes(tmp_path: Path) -> None:
    config = config_with(
        tmp_path, dynamo={"discovery_backend": "mem"}, decode={"engine": "emulated"}
    )
    with pytest.raises(UserError, match=r"^dynamo.discovery_backend: mem"):
        checked(config)
