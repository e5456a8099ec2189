# SPDX-License-Identifier: Apache-2.0
"""One factor for each system and engine between predicted and measured server times.

Pure. Owns: fitting the factors, applying them, their cross-validated error, and the file they are
kept in. Does not own: reading and writing it (the caller), predictions (steady_state).

A factor is the median over points of measured/predicted, so half of the points come out longer and
half shorter; TPOT and TTFT have one each. It stands for what step costs do not hold: host work
between steps, other kernels than the measured ones, a power limit. A system and engine without a
factor is not corrected: 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.silicon import Point
from controller.errors import UserError

SCHEMA = "equilibrium.silicon-corrections/1"
_FOLDS = 5

Floats = NDArray[np.float64]


class Metric(str, Enum):
    """What was measured."""

    TPOT = "tpot"
    TTFT = "ttft"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured point with what the uncorrected profile says, ms."""

    point: Point
    profile: str
    tpot_ms: float
    ttft_ms: float
    running: float

    def ratio(self, metric: Metric) -> float:
        """Measured over predicted."""
        if metric is Metric.TPOT:
            return self.point.tpot_ms / self.tpot_ms
        return self.point.ttft_ms / self.ttft_ms

    @property
    def group(self) -> tuple[str, str]:
        """What has a factor of its own."""
        return self.point.system, self.point.backend


class Factor(BaseModel):
    """Measured over predicted of one system and engine, from `points` points."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    backend: str
    tpot: float = Field(gt=0, allow_inf_nan=False)
    ttft: float = Field(gt=0, allow_inf_nan=False)
    points: int = Field(ge=1)


class CorrectionFile(BaseModel):
    """The shipped factors. `fitted_on` is the SHA-256 of the table that they come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: str = Field(alias="schema", pattern=f"^{SCHEMA}$")
    provenance: str = Field(min_length=1)
    license: str = Field(min_length=1)
    fitted_on: str
    factors: list[Factor]


Factors = Mapping[tuple[str, str], Factor]


def fit_factors(predictions: Sequence[Prediction]) -> dict[tuple[str, str], Factor]:
    """The factors of every system and engine that occurs."""
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for each in predictions:
        groups.setdefault(each.group, []).append(each)
    return {
        group: Factor(
            system=group[0],
            backend=group[1],
            tpot=float(np.median([each.ratio(Metric.TPOT) for each in members])),
            ttft=float(np.median([each.ratio(Metric.TTFT) for each in members])),
            points=len(members),
        )
        for group, members in sorted(groups.items())
    }


def factor(factors: Factors, group: tuple[str, str], metric: Metric) -> float:
    """The factor of a group; 1 where there is none."""
    found = factors.get(group)
    return 1.0 if found is None else float(getattr(found, metric.value))


def errors_pct(
    predictions: Sequence[Prediction], metric: Metric, factors: Factors | None = None
) -> Floats:
    """Absolute percentage errors (n,) after correction; without `factors` the raw ones."""
    scales = [factor(factors or {}, each.group, metric) for each in predictions]
    ratios = np.array([each.ratio(metric) for each in predictions])
    errors: Floats = 100.0 * np.abs(np.array(scales) / ratios - 1.0)
    return errors


def cross_validated_pct(
    predictions: Sequence[Prediction], metric: Metric, seeds: Sequence[int]
) -> Floats:
    """Errors (n * seeds,) of every point by factors fitted without its fold."""
    found = []
    for seed in seeds:
        fold = np.random.default_rng(seed).permutation(len(predictions)) % _FOLDS
        for k in range(_FOLDS):
            train = [each for each, at in zip(predictions, fold, strict=True) if at != k]
            test = [each for each, at in zip(predictions, fold, strict=True) if at == k]
            if test:
                found.append(errors_pct(test, metric, fit_factors(train)))
    return np.concatenate(found)


def parse_corrections(text: str, source: str) -> CorrectionFile:
    """The file's factors. Raises UserError that names the field."""
    try:
        return CorrectionFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise UserError(f"corrections {source}: {field}: {first['msg']}") from None


def dump_corrections(factors: Factors, provenance: str, license: str, fitted_on: str) -> str:
    """The text of the file, factors with four digits."""
    rows = [
        {**each.model_dump(), "tpot": round(each.tpot, 4), "ttft": round(each.ttft, 4)}
        for each in factors.values()
    ]
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    head = {"schema": SCHEMA, "provenance": provenance, "license": license, "fitted_on": fitted_on}
    fields = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
    return "{\n" + fields + ',\n  "factors": [\n' + lines + "\n  ]\n}\n"
