# SPDX-License-Identifier: Apache-2.0
"""The run folder and what must not go wrong around it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launcher_kit import external_config

from controller.config import parse_deployment
from controller.errors import UserError
from controller.runtime.launcher.run_folder import RunFolder

pytestmark = pytest.mark.unit


def test_folder_is_named_after_deployment_time_and_launcher(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "demo")
    name, date, time, pid = folder.path.name.rsplit("-", 3)
    assert (name, len(date), len(time), pid) == ("demo", 8, 6, str(os.getpid()))
    assert folder.log_path("router") == folder.path / "logs" / "router.log"
    assert folder.log_path("router").parent.is_dir()


def test_racing_launchers_get_folders_of_their_own_and_one_whole_latest(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: RunFolder.create(tmp_path, "demo"), range(16)))
    paths = {folder.path for folder in folders}
    assert len(paths) == 16
    assert (tmp_path / "latest").resolve() in paths
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".")]


def test_something_else_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    RunFolder.create(tmp_path, "demo")
    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


def test_base_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"run_dir .*file: cannot make a run folder"):
        RunFolder.create(tmp_path / "file", "demo")


def test_written_configuration_reads_back_the_same_and_is_private(tmp_path: Path) -> None:
    config = external_config(tmp_path, 8000, dynamo={"env": {"HF_TOKEN": "secret"}})
    path = RunFolder.create(tmp_path, "demo").write_config(config)
    assert parse_deployment(path.read_text(), str(path)) == config
    assert path.stat().st_mode & 0o077 == 0


def test_process_table_survives_a_folder_that_was_deleted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gone")
    folder.write_processes("http://127.0.0.1:8000", [])
