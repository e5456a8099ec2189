# SPDX-License-Identifier: Apache-2.0
"""Kernels are compiled once for given sources, and what other sources left is not used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.runtime.launcher import kernels

pytestmark = pytest.mark.unit


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Path:
    for room in ("costs", "routing/kernels"):
        (tmp_path / room / "__pycache__").mkdir(parents=True)
        (tmp_path / room / "law.py").write_text("x = 1\n")
    monkeypatch.setattr(kernels, "_package", lambda: tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path


def prepared(said: list[str]) -> list[str]:
    asyncio.run(kernels.prepare(said.append))
    return said


def test_the_stamp_follows_every_source(package: Path):
    before = kernels.stamp()
    assert kernels.stamp() == before
    (package / "costs" / "law.py").write_text("x = 2\n")
    assert kernels.stamp() != before


def test_the_stamp_lies_where_the_cache_is(package: Path, monkeypatch):
    assert kernels.stamp().parent == package / "routing" / "kernels" / "__pycache__"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(package / "elsewhere"))
    assert kernels.stamp().parent == package / "elsewhere"


def test_only_what_was_compiled_is_dropped(package: Path):
    cache = package / "costs" / "__pycache__"
    old = [cache / "law.f-1.py311.nbi", cache / "law.f-1.py311.1.nbc", cache / "compiled-0"]
    kept = cache / "law.cpython-311.pyc"
    for path in (*old, kept):
        path.touch()
    kernels.drop_old()
    assert not any(path.exists() for path in old)
    assert kept.exists()


def test_nothing_is_said_or_started_when_it_was_done(package: Path, monkeypatch):
    kernels.stamp().touch()
    monkeypatch.setattr(kernels.sys, "executable", "/does/not/exist")
    assert prepared([]) == []


def test_it_is_said_when_it_takes_a_while_and_a_failure_does_not_stop_the_start(
    package: Path, monkeypatch
):
    monkeypatch.setattr(kernels.sys, "executable", "/bin/false")
    assert prepared([]) == ["compiling kernels, once after an installation or an update"]


@pytest.mark.integration
def test_every_rule_can_be_made_for_it():
    kernels.compile_all()
