# SPDX-License-Identifier: Apache-2.0
"""Step tables from operator times, operator by operator.

Pure. Owns: which table of `StepTables` each operator becomes. Does not own: the fits themselves
(controller.costs), the grid (operator_steps).
"""

from __future__ import annotations

import numpy as np

from controller.costs.attention_fit import fit_attention
from controller.costs.curves import fit_curve, rising
from controller.costs.measurements import StepMeasurements, measurements
from controller.costs.tables import StepTables, default_options, transfer_vector, vector
from experiments.operator_steps import (
    BATCHES,
    CHUNKS,
    CONTEXTS,
    LONGEST,
    Operators,
    chunk_attention_s,
    grid,
)

# Token counts of the dense table: every decode batch, every chunk, and their sums at the top.
TOKENS = sorted({*BATCHES, *CHUNKS, 24, 640, 1280, 2560, 5120, CHUNKS[-1] + BATCHES[-1]})


def fit_operators(operators: Operators, kv_tokens: float, budget: int) -> StepTables:
    """Tables of a worker whose KV cache holds `kv_tokens` tokens; no graphs, no transfer yet."""
    dense = rising(fit_curve(TOKENS, np.array([operators.dense_s(n) for n in TOKENS])))
    head = rising(fit_curve(BATCHES, np.array([operators.head_s(n) for n in BATCHES])))
    attention = fit_attention(_attention(operators, kv_tokens))
    return StepTables(
        dense_tokens=dense.at,
        dense_s=dense.value,
        sequences=head.at,
        sequence_s=head.value,
        capture_sizes=vector([]),
        transfer=transfer_vector(0.0, 1.0, 1.0),
        limits=vector([BATCHES[-1], CONTEXTS[-1], CHUNKS[-1], LONGEST]),
        options=default_options(budget),
        **attention._asdict(),
    )


def _attention(operators: Operators, kv_tokens: float) -> StepMeasurements:
    """Attention alone of the grid's pure steps."""
    steps = [step for step in grid(kv_tokens) if not (step.batch and step.chunk)]
    times = [
        operators.decode_attention_s(step.batch, step.context)
        if step.batch
        else chunk_attention_s(operators, step.chunk, step.history)
        for step in steps
    ]
    batch = np.array([step.batch for step in steps])
    context = batch * np.array([step.context for step in steps])
    chunk, history = ([getattr(s, name) for s in steps] for name in ("chunk", "history"))
    return measurements(batch, context, chunk, history, times)
