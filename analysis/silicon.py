# SPDX-License-Identifier: Apache-2.0
"""Measured TTFT and TPOT of whole servers, and which of our profiles they can be compared with.

Owns: the rows of aiconfigurator's validation table (CSV), the reason why a row is not covered, the
match of a row with a profile. Does not own: reading files (the caller), predictions (steady_state),
correction factors (corrections).

A row matches a profile of the same model, GPU, engine, precision and tensor parallel degree,
without pipeline, data or expert parallelism. Model names are compared without organisation and
without the words that name a checkpoint's tuning or quantisation. A row that states no precision
is of an unquantised checkpoint: 16 bits.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from controller.costs.profile import Profile
from controller.errors import UserError

_COLUMNS = ("id", "backend", "model_path", "system", "mode", "isl", "osl")
_PRECISIONS = {"nvfp4": "fp4", "float16": "bf16", "bfloat16": "bf16", "": "bf16"}
_CHECKPOINT_WORDS = {"instruct", "fp8", "nvfp4", "meta"}


class SiliconError(UserError):
    """A table of measured servers that cannot be read."""


class Uncovered(str, Enum):
    """Why a row has no prediction. Append only."""

    DISAGGREGATED = "disaggregated"
    PARALLELISM = "pipeline, data or expert parallelism"
    UNREADABLE = "a number is missing"
    NO_PROFILE = "no profile of this model, GPU, engine, precision and degree"


@dataclass(frozen=True, slots=True)
class Key:
    """What a profile and a row must have in common, in lower case."""

    model: str
    system: str
    backend: str
    precision: str
    tp: int


@dataclass(frozen=True, slots=True)
class Point:
    """One measured server; `uncovered` is None where the numbers can be compared."""

    id: str
    model: str
    system: str
    backend: str
    uncovered: Uncovered | None
    precision: str = ""
    tp: int = 0
    isl: int = 0
    osl: int = 0
    concurrency: int = 0
    ttft_ms: float = math.nan
    tpot_ms: float = math.nan

    @property
    def key(self) -> Key:
        """What its profile must have."""
        return Key(self.model, self.system, self.backend, self.precision, self.tp)


def parse_points(csv_text: str, source: str) -> list[Point]:
    """Every row as a point. Raises SiliconError that names a missing column."""
    reader = csv.DictReader(io.StringIO(csv_text))
    for name in _COLUMNS:
        if name not in (reader.fieldnames or ()):
            raise SiliconError(f"{source}: missing column {name}")
    points = [_point({k: v or "" for k, v in row.items() if k}) for row in reader]
    if not points:
        raise SiliconError(f"{source}: no rows")
    return points


def match(points: Iterable[Point], profiles: Mapping[Key, str]) -> list[Point]:
    """The points, those that have no profile marked as such."""
    return [
        _marked(point, Uncovered.NO_PROFILE)
        if point.uncovered is None and point.key not in profiles
        else point
        for point in points
    ]


def profile_key(profile: Profile) -> Key | None:
    """The key of a profile; None for one with pipeline, data or expert parallelism."""
    layout = profile.parallelism
    if (layout.pp, layout.dp, layout.ep) != (1, 1, 1):
        return None
    return Key(
        model=model_name(profile.model),
        system=_system(profile.gpu),
        backend=profile.engine.name.lower(),
        precision=profile.precision.lower(),
        tp=layout.tp,
    )


def model_name(text: str) -> str:
    """`nvidia/Llama-3.1-8B-Instruct-FP8` is `llama-3.1-8b`."""
    words = text.rsplit("/", 1)[-1].lower().split("-")
    return "-".join(word for word in words if word not in _CHECKPOINT_WORDS)


def _system(text: str) -> str:
    """`h100_sxm` is `h100`."""
    return text.lower().removesuffix("_sxm")


def _point(row: Mapping[str, str]) -> Point:
    named = Point(
        id=row["id"],
        model=model_name(row["model_path"]),
        system=_system(row["system"]),
        backend=row["backend"].lower(),
        uncovered=None,
    )
    if row["mode"] != "agg":
        return _marked(named, Uncovered.DISAGGREGATED)
    if any(_count(row.get(name, "")) > 1 for name in _SPREAD):
        return _marked(named, Uncovered.PARALLELISM)
    numbers = {name: _number(row.get(name, "")) for name in _NUMBERS}
    if any(not value > 0 for value in numbers.values()):
        return _marked(named, Uncovered.UNREADABLE)
    quantised = row.get("gemm_quant_mode") or row.get("precision") or ""
    return Point(
        id=named.id,
        model=named.model,
        system=named.system,
        backend=named.backend,
        uncovered=None,
        precision=_PRECISIONS.get(quantised, quantised),
        tp=int(numbers["tp_size"]),
        isl=int(numbers["isl"]),
        osl=int(numbers["osl"]),
        concurrency=int(numbers["batch_size"]),
        ttft_ms=numbers["silicon_ttft_ms"],
        tpot_ms=numbers["silicon_tpot_ms"],
    )


_SPREAD = ("pp_size", "attention_dp_size", "moe_ep_size")
_NUMBERS = ("isl", "osl", "batch_size", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")


def _marked(point: Point, why: Uncovered) -> Point:
    return Point(point.id, point.model, point.system, point.backend, why)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _count(text: str) -> float:
    """A parallel degree; blank and 0 both mean that there is none."""
    value = _number(text)
    return value if value > 1 else 1.0
