# SPDX-License-Identifier: Apache-2.0
"""Imports point inwards only, and the pure rooms do no I/O (design sections 2 and 3)."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parent.parent / "controller"
LAYERS = [
    {"errors", "types"},
    {"config", "costs"},
    {"engine", "routing", "games"},
    {"planning", "estimation", "simulation"},
    {"control"},
    {"runtime"},
    {"cli"},
]
PURE = {
    "types",
    "config",
    "costs",
    "routing",
    "engine",
    "simulation",
    "estimation",
    "games",
    "planning",
    "control",
}
IO = {
    "redis",
    "aiohttp",
    "httpx",
    "requests",
    "socket",
    "subprocess",
    "asyncio",
    "dynamo",
    "nixl",
    "prometheus_client",
    "time",
    "os",
    "threading",
}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _layer(room: str) -> int:
    return next(level for level, rooms in enumerate(LAYERS) if room in rooms)


def _imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


FILES = [
    p
    for p in sorted(ROOT.rglob("*.py"))
    if (p.name not in ("__main__.py",) and p.parent != ROOT)
    or p.name in ("types.py", "config.py", "errors.py")
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_inwards(path):
    room = _room(path)
    for name in _imports(path):
        parts = name.split(".")
        assert parts[0] != "analysis" or room == "cli", f"{path.name} imports {name}"
        if parts[0] != "controller" or len(parts) < 2:
            continue
        assert _layer(parts[1]) <= _layer(room), f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if _room(p) in PURE], ids=lambda p: str(p.relative_to(ROOT))
)
def test_pure_rooms_do_no_io(path):
    assert not IO.intersection(name.split(".")[0] for name in _imports(path))


def test_test_files_are_found_by_one_name_whatever_is_collected_with_them():
    """Folders of tests are no packages: a name stands for the file that came first."""
    files = list(Path(__file__).parent.rglob("*.py"))
    names = [path.name for path in files if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
    assert [p.name for p in files if "conftest" in _imports(p)] == []
