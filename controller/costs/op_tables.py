# SPDX-License-Identifier: Apache-2.0
"""Operator measurements of one GPU, model and tensor parallel degree, as arrays.

Owns: reading the four CSV texts of a profile folder of LLMServingSim (casys-kaist, MIT): attention,
dense, per_sequence and, for a mixture of experts, moe. Times are kernel times of one layer and one
rank. Does not own: fitting (op_fit), reading files (the caller).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.costs.measurements import (
    MeasurementError,
    StepMeasurements,
    measurements,
    read_rows,
)
from controller.costs.tables import Floats

Samples = tuple[Floats, Floats]  # points (n,) and seconds (n,)


@dataclass(frozen=True, slots=True)
class MoeSamples:
    """Seconds (n,) of one layer's experts by tokens (n,) and experts that any token uses (n,)."""

    tokens: Floats
    activated: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True)
class OpTables:
    """One folder: attention by step shape, the rest by tokens or by sequences."""

    attention: StepMeasurements
    dense: Mapping[str, Samples]
    per_sequence: Mapping[str, Samples]
    moe: MoeSamples | None


def parse_op_tables(texts: Mapping[str, str], source: str) -> OpTables:
    """The tables from texts by file stem (`attention`, `dense`, `per_sequence`, maybe `moe`).

    Raises MeasurementError that names file, row and column.
    """
    for needed in ("attention", "dense", "per_sequence"):
        if needed not in texts:
            raise MeasurementError(f"{source}: {needed}.csv is missing")
    moe = texts.get("moe")
    return OpTables(
        attention=_attention(texts["attention"], f"{source}/attention.csv"),
        dense=_by_layer(texts["dense"], "tokens", f"{source}/dense.csv"),
        per_sequence=_by_layer(texts["per_sequence"], "sequences", f"{source}/per_sequence.csv"),
        moe=_moe(moe, f"{source}/moe.csv") if moe is not None else None,
    )


def _attention(text: str, source: str) -> StepMeasurements:
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    _, values = _table(text, columns, source)
    chunk, history, batch, context, time_us = values.T
    return measurements(batch, batch * context, chunk, history, time_us / 1e6)


def _by_layer(text: str, axis: str, source: str) -> dict[str, Samples]:
    names, values = _table(text, (axis, "time_us"), source, label="layer")
    layers = dict.fromkeys(names)
    labels = np.array(names)
    return {
        layer: (values[labels == layer, 0], values[labels == layer, 1] / 1e6) for layer in layers
    }


def _moe(text: str, source: str) -> MoeSamples:
    _, values = _table(text, ("tokens", "activated_experts", "time_us"), source)
    return MoeSamples(values[:, 0], values[:, 1], values[:, 2] / 1e6)


def _table(
    text: str, columns: tuple[str, ...], source: str, label: str | None = None
) -> tuple[list[str], Floats]:
    """Labels (if asked for) and numbers (n, columns) of a CSV whose last column is a time."""
    header, found = read_rows(text, source)
    for name in (*columns, *([label] if label else [])):
        if name not in header:
            raise MeasurementError(f"{source}: missing column {name}")
    labels, rows = [], []
    for number, row in enumerate(found, start=2):
        values = [_number(row[name], name, number, source) for name in columns]
        if values[-1] <= 0:
            raise MeasurementError(f"{source}: row {number}, {columns[-1]}: must be above 0")
        rows.append(values)
        labels.append(str(row[label]) if label else "")
    if not rows:
        raise MeasurementError(f"{source}: no rows")
    return labels, np.array(rows)


def _number(text: str | None, column: str, number: int, source: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise MeasurementError(
            f"{source}: row {number}, {column}: expected a number from 0 up, got {text!r}"
        )
    return value
