# SPDX-License-Identifier: Apache-2.0
"""Finding what ships with the project: deployment files, cost profiles and traces.

Owns: the rule that an argument is a path or the name of a shipped file, `--set` overrides, and
the messages when neither is found (with the known names, or the nearest of many).
Does not own: what is inside (controller.config, controller.costs.profile, the trace readers).

A shipped file's name is its file name up to the first dot. A path wins over a name.
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from controller.config import DeploymentConfig, parse_deployment
from controller.costs.profile import Profile, parse_profile
from controller.errors import UserError
from controller.runtime.files import read_text

_PACKAGE = "dynamo_configs"


class Kind(str, Enum):
    """What can be shipped; the value is how messages call it."""

    DEPLOYMENT = "deployment file"
    PROFILE = "profile"
    TRACE = "trace"
    SIMULATION = "simulation file"


_FEW_NAMES = 8
_NEAREST = 3
_LISTED = {Kind.PROFILE: "equilibrium profile list"}
_FOLDERS = {
    Kind.DEPLOYMENT: "",
    Kind.PROFILE: "profiles",
    Kind.TRACE: "traces",
    Kind.SIMULATION: "",
}
_SIMULATION_PREFIX = "simulate_"
_SUFFIXES = {
    Kind.DEPLOYMENT: (".yaml", ".yml"),
    Kind.SIMULATION: (".yaml", ".yml"),
    Kind.PROFILE: (".json",),
    Kind.TRACE: (".jsonl", ".json", ".csv", ".jsonl.gz", ".csv.gz"),
}


def shipped(kind: Kind) -> dict[str, Path]:
    """The shipped files of a kind, by name; a deployment can be simulated too."""
    folder = Path(str(importlib.resources.files(_PACKAGE))) / _FOLDERS[kind]
    if not folder.is_dir():
        return {}
    files = [entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES[kind])]
    if kind is Kind.DEPLOYMENT:
        files = [entry for entry in files if not entry.name.startswith(_SIMULATION_PREFIX)]
    return {entry.name.split(".", 1)[0]: entry for entry in sorted(files, key=lambda e: e.name)}


def find(kind: Kind, name_or_path: str | Path) -> Path:
    """The file that an argument means. Raises UserError that names the likeliest shipped ones."""
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    known = shipped(kind)
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    if path.is_dir():
        raise UserError(f"{kind.value} {path} is a folder")
    hint = _hint(kind, str(name_or_path), list(known))
    raise UserError(f"{kind.value} {name_or_path} does not exist; {hint}")


def _hint(kind: Kind, given: str, known: list[str]) -> str:
    """All shipped names if they are few, otherwise the three nearest and how to list all."""
    if len(known) <= _FEW_NAMES:
        return f"shipped by name: {', '.join(known) or 'none'}"
    near = difflib.get_close_matches(given, known, n=_NEAREST, cutoff=0.0)
    every = f"; all: {_LISTED[kind]}" if kind in _LISTED else ""
    return f"nearest of {len(known)} shipped by name: {', '.join(near)}{every}"


def read(kind: Kind, name_or_path: str | Path) -> str:
    """The text of a shipped file or of a path. Raises UserError."""
    return read_text(find(kind, name_or_path), kind.value)


def read_profile(name_or_path: str | Path) -> Profile:
    """A cost profile, shipped or from a file. Raises UserError."""
    return parse_profile(read(Kind.PROFILE, name_or_path), str(name_or_path))


def read_deployment_with(
    name_or_path: str | Path, overrides: Sequence[tuple[str, Any]] = ()
) -> DeploymentConfig:
    """A deployment file with some keys replaced before it is validated. Raises UserError."""
    text, source = read(Kind.DEPLOYMENT, name_or_path), str(name_or_path)
    if not overrides:
        return parse_deployment(text, source)
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError:
        raw = None
    if not isinstance(raw, dict):
        return parse_deployment(text, source)  # it knows how to complain
    for path, value in overrides:
        replace_key(raw, path, value)
    return parse_deployment(yaml.safe_dump(raw), source)


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value` of `--set`; the value is YAML. Raises UserError."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise UserError(f"--set {text}: expected key.path=value, as in frontend.http_port=8001")
    try:
        return path, yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text}: the value is not YAML") from None


def replace_key(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set `key.path` of nested keys; a number is a place in a list. Raises UserError."""
    *parents, last = path.split(".")
    node: Any = raw
    for part in parents:
        if isinstance(node, dict) and node.get(part) is None:
            node[part] = {}
        node = node[_place(node, part, path)]
        if not isinstance(node, (dict, list)):
            raise UserError(f"--set {path}: {part} is a value, not a group of keys")
    node[_place(node, last, path)] = value


def _place(node: dict[str, Any] | list[Any], part: str, path: str) -> Any:
    if isinstance(node, dict):
        return part
    if not part.isdecimal() or int(part) >= len(node):
        raise UserError(f"--set {path}: {part} is no place in a list of {len(node)}")
    return int(part)
