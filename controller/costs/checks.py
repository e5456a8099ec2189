# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a set of tables, in words that name the table.

Owns: the rules that every `StepTables` keeps (lengths, order, signs, monotony). Does not own:
types of single fields (profile), enforcing the rules while fitting (fit, op_profiles).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.costs.overlap_rules import lattice_times
from controller.costs.tables import (
    BANDWIDTH_BYTES_S,
    EMITTED,
    LIMITS,
    MAX_CHUNK,
    OPTIONS,
    VERIFIED,
    Floats,
    StepTables,
)

# Tables are rounded to six digits in files, so neighbours that were equal may differ by that.
_SLACK = 1e-5
_LATTICE_SLACK = 5e-4  # times of mixed steps multiply rounded numbers


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule: the field of `StepTables` and what is wrong with it."""

    field: str
    what: str


def problem(tables: StepTables) -> Problem | None:
    """The first rule that `tables` break, or None."""
    for check in (_numbers, _grids, _lengths, _monotone, _overlap, _scalars):
        found = check(tables)
        if found is not None:
            return found
    return None


def _numbers(t: StepTables) -> Problem | None:
    for name in StepTables._fields:
        values = getattr(t, name)
        if np.isnan(values).any():
            return Problem(name, "holds NaN")
        if (values < 0).any():
            return Problem(name, "holds a negative value")
        if np.isinf(values).any() and name != "limits":
            return Problem(name, "holds an infinite value")
    return None


def _grids(t: StepTables) -> Problem | None:
    needed = ("dense_tokens", "batch", "context", "chunk", "attended")
    mixed = ("mixed_batch", "mixed_context", "mixed_chunk", "mixed_share")
    free = ("sequences", *mixed, "capture_sizes")
    for name in needed + free:
        values = getattr(t, name)
        if name in needed and len(values) == 0:
            return Problem(name, "is empty")
        if (np.diff(values) <= 0).any():
            return Problem(name, "not strictly ascending")
    return None


def _lengths(t: StepTables) -> Problem | None:
    cells = len(t.mixed_chunk) * len(t.mixed_batch) * len(t.mixed_share)
    exact = (
        ("dense_s", len(t.dense_tokens)),
        ("sequence_s", len(t.sequences)),
        ("decode_s", len(t.batch) * len(t.context)),
        ("prefill_s", len(t.chunk) * len(t.attended)),
        ("mixed_decode_s", len(t.mixed_batch) * len(t.mixed_context)),
        ("overlap", cells),
        ("transfer", 3),
        ("limits", LIMITS),
        ("options", OPTIONS),
    )
    for name, length in exact:
        if len(getattr(t, name)) != length:
            return Problem(name, f"{len(getattr(t, name))} values for a grid of {length}")
    return None


def _falls(values: Floats, axis: int = 0, slack: float = _SLACK) -> bool:
    """Whether values fall along an axis by more than rounding."""
    lower, upper = (np.moveaxis(values, axis, 0)[part] for part in (slice(-1), slice(1, None)))
    return bool((lower - upper > slack * np.abs(lower) + 1e-15).any())


def _monotone(t: StepTables) -> Problem | None:
    shapes = (
        ("dense_s", (-1,)),
        ("sequence_s", (-1,)),
        ("decode_s", (len(t.batch), -1)),
        ("prefill_s", (len(t.chunk), -1)),
        ("mixed_decode_s", (len(t.mixed_batch), -1)),
    )
    for name, shape in shapes:
        if len(getattr(t, name)) == 0:
            continue
        values = getattr(t, name).reshape(shape)
        if any(_falls(values, axis) for axis in range(values.ndim)):
            return Problem(name, "not monotone: falls where its grid rises")
    return None


def _overlap(t: StepTables) -> Problem | None:
    """The two rules of controller.costs.overlap_rules."""
    if len(t.overlap) == 0:
        return None
    share = t.mixed_share
    if len(share) < 2 or share[0] != 0.0 or share[-1] != 1.0:
        return Problem("mixed_share", "must go from 0 to 1")
    table = t.overlap.reshape(len(t.mixed_chunk), len(t.mixed_batch), -1)
    slope = np.diff(table, axis=2) / np.diff(share)
    of_prefill = table[:, :, :-1] - slope * share[:-1]
    if (of_prefill < -_SLACK).any() or (of_prefill + slope < -_SLACK).any():
        return Problem("overlap", "not monotone: a longer part makes the whole shorter")
    rows = np.searchsorted(t.chunk, t.mixed_chunk)
    if not np.isin(t.mixed_chunk, t.chunk).all():
        return Problem("mixed_chunk", "holds a chunk that the prefill table has no row for")
    prefill = t.prefill_s.reshape(len(t.chunk), -1)[rows]
    decode = t.mixed_decode_s.reshape(len(t.mixed_batch), -1)
    times = lattice_times(table, prefill, decode, share)
    if _falls(times, 0, _LATTICE_SLACK) or _falls(times, 1, _LATTICE_SLACK):
        return Problem("overlap", "not monotone: more work takes less time")
    return None


def _scalars(t: StepTables) -> Problem | None:
    if t.transfer[BANDWIDTH_BYTES_S] <= 0:
        return Problem("transfer", "bandwidth must be above 0")
    if t.options[MAX_CHUNK] < 1:
        return Problem("options", "max chunk must be at least 1")
    if t.options[VERIFIED] < t.options[EMITTED]:
        return Problem("options", "emits more tokens a step than it verifies")
    return None
