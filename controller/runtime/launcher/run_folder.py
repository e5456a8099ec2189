# SPDX-License-Identifier: Apache-2.0
"""The folder of one run: logs, the resolved configuration, the process table.

<base>/<name>-<YYYYmmdd-HHMMSS>-<pid>/{logs/<process>.log, config.yaml, processes.json}
<base>/latest -> that folder
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from controller.config import DeploymentConfig
from controller.errors import UserError
from controller.runtime.launcher.plan import CONFIG_FILE


class RunFolder:
    """Paths and writers; every file appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, base: Path, name: str) -> RunFolder:
        """Make a fresh folder below `base`. Raises UserError when that is not possible."""
        try:
            base.mkdir(parents=True, exist_ok=True)
            path = _fresh(base, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
            (path / "logs").mkdir()
        except OSError as error:
            raise UserError(
                f"run_dir {base}: cannot make a run folder there: {error.strerror}"
            ) from None
        _point_latest(base, path)
        return cls(path)

    def log_path(self, process: str) -> Path:
        """Where a process logs."""
        return self.path / "logs" / f"{process}.log"

    def write_config(self, config: DeploymentConfig) -> Path:
        """The resolved configuration, as the router and the workers read it."""
        text = yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False)
        path = self.path / CONFIG_FILE
        # dynamo.env may hold a token: for the owner's eyes only.
        _write_whole(path, text, mode=0o600)
        return path

    def write_processes(self, url: str, processes: Sequence[dict[str, Any]]) -> None:
        """The process table (names, pids, commands, states); no environment, no secrets."""
        table = {"launcher_pid": os.getpid(), "url": url, "processes": list(processes)}
        # The folder may be taken away while the deployment runs; that must not stop it.
        with contextlib.suppress(OSError):
            _write_whole(self.path / "processes.json", json.dumps(table, indent=2) + "\n")


def _fresh(base: Path, name: str) -> Path:
    for number in itertools.count(1):
        path = base / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("unreachable")


def _point_latest(base: Path, path: Path) -> None:
    """Aim `latest` at the newest run; one rename, so that racing launchers leave a whole link."""
    scratch = base / f".latest-{path.name}"
    with contextlib.suppress(OSError):  # a convenience: no links here, or a folder of that name
        scratch.symlink_to(path.name)
        try:
            scratch.replace(base / "latest")
        except OSError:
            scratch.unlink()
            raise


def _write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
        stream.write(text)
    scratch.replace(path)
