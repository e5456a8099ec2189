# SPDX-License-Identifier: Apache-2.0
"""Measured steps as arrays, and the CSV that an operator hands in.

Owns: `StepMeasurements` and reading the columns batch, context_tokens, prefill_tokens,
prefill_context_tokens, step_ms. Does not own: fitting (fit), where the file lies (cli).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.costs.tables import Floats, vector
from controller.errors import UserError

COLUMNS = ("batch", "context_tokens", "prefill_tokens", "prefill_context_tokens", "step_ms")

_LARGEST = 1e12  # tokens and milliseconds; what is larger is a mistake, and its square overflows


class MeasurementError(UserError):
    """A table of measurements that cannot be used; the message names row and column."""


@dataclass(frozen=True, slots=True)
class StepMeasurements:
    """Measured steps, every array of shape (n,); tokens and seconds.

    `context` is the KV tokens that the step's decodes hold in all; `pairs` the sum over its
    prompts of chunk*(history + chunk/2).
    """

    batch: Floats
    context: Floats
    chunk: Floats
    pairs: Floats
    step_s: Floats

    def __len__(self) -> int:
        return len(self.step_s)

    def take(self, index: np.ndarray) -> StepMeasurements:
        """The steps that an index or a mask selects."""
        return StepMeasurements(
            self.batch[index],
            self.context[index],
            self.chunk[index],
            self.pairs[index],
            self.step_s[index],
        )


def measurements(
    batch: object, context: object, chunk: object, history: object, step_s: object
) -> StepMeasurements:
    """Steps with at most one prompt each: `history` is the context its chunk builds on."""
    x, h = vector(chunk), vector(history)
    return StepMeasurements(vector(batch), vector(context), x, x * (h + x / 2), vector(step_s))


def parse_measurements(csv_text: str, source: str) -> StepMeasurements:
    """Read a CSV with the columns of COLUMNS. Raises MeasurementError with row and column.

    `prefill_context_tokens` is the context that the step's prompt tokens build on (tokens already
    computed), with several prompts in a step their mean weighted by chunk.
    """
    names, found = read_rows(csv_text, source)
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise MeasurementError(f"{source}: missing column {missing[0]}; need {', '.join(COLUMNS)}")
    rows = [_row(row, number, source) for number, row in enumerate(found, start=2)]
    if not rows:
        raise MeasurementError(f"{source}: no rows")
    batch, context, chunk, history, step_ms = np.array(rows).T
    return measurements(batch, context, chunk, history, step_ms / 1e3)


def read_rows(csv_text: str, source: str) -> tuple[Sequence[str], list[dict[str, str | None]]]:
    """Column names and rows of a CSV with a header. Raises MeasurementError if it is none."""
    try:
        reader = csv.DictReader(io.StringIO(csv_text))
        return reader.fieldnames or (), list(reader)
    except csv.Error as error:
        raise MeasurementError(f"{source}: not a CSV ({error})") from None


def _row(row: dict[str, str | None], number: int, source: str) -> list[float]:
    values = [_number(row[name], name, number, source) for name in COLUMNS]
    batch, context, chunk, _, step_ms = values
    if step_ms <= 0:
        raise MeasurementError(f"{source}: row {number}, step_ms: must be above 0, got {step_ms:g}")
    if batch == 0 and chunk == 0:
        raise MeasurementError(f"{source}: row {number}: neither batch nor prefill_tokens above 0")
    if batch == 0 and context > 0:
        raise MeasurementError(f"{source}: row {number}: context_tokens without decodes (batch 0)")
    return values


def _number(text: str | None, column: str, number: int, source: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST:
        shown = "nothing" if not text else repr(text)
        raise MeasurementError(
            f"{source}: row {number}, {column}: expected a number from 0 up, got {shown}"
        )
    return value


def format_measurements(rows: Iterable[tuple[float, float, float, float, float]]) -> str:
    """The CSV text of rows (batch, context, chunk, history, step in ms)."""
    lines = [",".join(COLUMNS)]
    lines += [",".join(f"{value:.6g}" for value in row) for row in rows]
    return "\n".join(lines) + "\n"
