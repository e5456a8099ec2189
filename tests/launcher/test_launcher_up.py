# SPDX-License-Identifier: Apache-2.0
"""`equilibrium up` as a command: exit codes, one-line errors, signals during the start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from launcher_kit import external_config, free_port, frontend, mentioning

from controller.cli import up
from controller.cli.main import main
from controller.runtime.launcher import Deployment

REPOSITORY = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
# The rest of the deployment is elsewhere and never comes: a start that waits.
WAITING = """
schema: equilibrium.deployment/1
router: {attachment: none}
prefill: {engine: external}
decode: {engine: external}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "waiting.yaml"
    path.write_text(WAITING + f"run_dir: {tmp_path / 'runs'}\n")
    return path


@pytest.mark.unit
@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--config", "nope.yaml"], "deployment file nope.yaml does not exist; shipped by name"),
        (["--config", "local_1p2d", "--set", "frontend.http_prt=1"], "did you mean 'http_port'?"),
        (["--config", "local_1p2d", "--set", "frontend"], "expected key.path=value"),
        (["--config", "local_1p2d", "--port", "0"], "frontend.http_port: "),
        (["--config", "local_1p2d", "--set", "router.profile=gtx"], "router.profile: profile gtx"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    argv: Sequence[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["up", *argv]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert line in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
def test_dry_run_prints_the_processes_and_makes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["up", "--config", "local_1p2d", "--port", "8123", "--dry-run"]) == 0
    out = capsys.readouterr().out
    for text in ("frontend", "--http-port 8123", "router", "prefill-0", "decode-1"):
        assert text in out
    assert "registers: dynamo-prefill.prefill.generate x1" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_port_in_use_is_exit_code_2(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert main(["up", "--config", str(config_file), "--port", str(port)]) == 2
    assert f"frontend.http_port: port {port} on 127.0.0.1 is in use" in capsys.readouterr().err


@pytest.mark.integration
def test_help_is_fast_and_imports_no_dynamo() -> None:
    code = (
        "import sys; from controller.cli.main import main\n"
        "try: main(['up', '--help'])\n"
        "finally: assert not {'dynamo', 'aiohttp', 'yaml'} & set(sys.modules)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout
    assert time.monotonic() - started < 5


@pytest.fixture
def waiting(config_file: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = _up(config_file, free_port())
    yield process
    process.kill()
    process.communicate()
    assert mentioning(str(tmp_path)) == []


def _up(config_file: Path, port: int, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "controller", "up", "--config", str(config_file)),
            *("--port", str(port), *more),
        ],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_the_start_stops_it_with_exit_code_0(
    waiting: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert waiting.stdout is not None
    waiting.stdout.readline()
    assert waiting.stdout.readline() == "starting frontend\n"
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=15)
    assert waiting.returncode == 0, err
    assert out.endswith(f"stopped on {number.name}\n")
    assert err == ""


@pytest.mark.integration
def test_start_that_gets_nowhere_is_exit_code_1(config_file: Path) -> None:
    process = _up(config_file, free_port(), "--set", "ready_timeout_s=3")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "not ready after 3 s" in err
    assert "lists no model, not equilibrium/tiny (logs/frontend.log)" in err


@pytest.mark.integration
async def test_ready_deployment_prints_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    spec = frontend(port, tmp_path / "journal")
    config = external_config(tmp_path, port)
    async with Deployment.start(config, plan=lambda config, run_dir: (spec,)) as deployment:
        up._print_ready(deployment)
    out = capsys.readouterr().out
    assert f"s: http://127.0.0.1:{port}/v1\n" in out
    assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in out
    assert f"HF_HOME={deployment.run_dir}/hf " in out
