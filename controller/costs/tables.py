# SPDX-License-Identifier: Apache-2.0
"""The tables behind every predicted time: one step, one prefill, one KV transfer.

Owns: the arrays (`StepTables`), what each means, and their packing into one array for cheap calls
from Python. Does not own: evaluation (kernels), fitting (fit, op_profiles), files (profile).

One engine step that computes `chunk` prompt tokens beside `batch` running decodes takes

    dense(padded tokens) + per_sequence(sequences) + attention

- dense: everything that depends only on the number of tokens in the step (projections, MLP, norms,
  collectives, the host's constant part). Piecewise linear; the base is its value at 0.
- per_sequence: head, sampler and host work by number of sequences. Piecewise linear.
- attention of a pure decode step: at every batch of the grid a piecewise linear function of the
  context a sequence (total context / batch). So at a fixed batch a step is a + c*context, as
  pilots showed for whole models, with breakpoints where measurements ask for them.
- attention of a pure prefill step: at every chunk a piecewise linear function of the mean
  attended length of a prompt token, pairs/chunk with pairs = sum over the step's prompts of
  chunk*(history + chunk/2).
- attention of a mixed step is not the sum of the two: the kernel overlaps them or lets one wait
  for the other. With P the prefill part alone, D the decode part as the mixed kernel computes it
  and s = D/(P + D) the decode share, it is max(P, pure decode, (P + D) * overlap(chunk, batch, s)).
  An overlap of 1 is additive, max(s, 1 - s) perfect overlap. Without an overlap table the step is
  P + pure decode.
  The overlap is linear in s between nodes, so that on each piece the time is p*P + d*D with p and
  d from 0 up. Cells are blended, each with the parts of its own chunk and batch, and no cell is
  faster than one of fewer tokens or sequences: mixed steps are monotone (overlap_rules).

Between two batches (chunks) a table is linear at equal context a sequence (attended length), so
it stays linear in the totals; a grid that starts at 0 is linear from nothing, otherwise its first
row is the floor. Beyond the last batch (chunk) the last row grows in proportion.
Sources: AMPD (arXiv 2602.14516) section 2 for piecewise alpha-beta; Kairos (arXiv 2607.02043)
section 4 for the joint step of chunk and decodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Places in `StepTables.options`.
MAX_CHUNK = 0  # prompt tokens in one step of a prefill that has the worker for itself
VERIFIED = 1  # tokens computed a sequence and decode step: 1 + draft tokens
EMITTED = 2  # tokens emitted a sequence and decode step, mean: 1 + accepted drafts
PAD_MIXED = 3  # 1: steps that hold prompt tokens are padded to a capture size too
OPTIONS = 4

# Places in `StepTables.limits`: beyond them a prediction extrapolates.
MAX_BATCH = 0
MAX_CONTEXT = 1  # KV tokens of one sequence, mean of the batch
MAX_STEP_CHUNK = 2
MAX_ATTENDED = 3  # mean attended length of a prompt token: pairs/chunk
LIMITS = 4

# Places in `StepTables.transfer`.
LATENCY_S = 0
BYTES_PER_TOKEN = 1
BANDWIDTH_BYTES_S = 2

_FAR = 1e6  # a second knot for tables that are one line


class StepTables(NamedTuple):
    """Float64 vectors, C-contiguous; seconds and tokens. Grids ascend, tables are row-major."""

    dense_tokens: Floats  # (n,) tokens in the step
    dense_s: Floats  # (n,)
    sequences: Floats  # (m,) sequences in the step; empty = no such work
    sequence_s: Floats  # (m,)
    batch: Floats  # (b,) running decodes
    context: Floats  # (k,) KV tokens a sequence
    decode_s: Floats  # (b * k,)
    chunk: Floats  # (p,) prompt tokens in the step
    attended: Floats  # (z,) pairs/chunk
    prefill_s: Floats  # (p * z,)
    mixed_batch: Floats  # (v,) running decodes; empty = additive
    mixed_context: Floats  # (k',) KV tokens a sequence
    mixed_decode_s: Floats  # (v * k',) decode part in the mixed kernel
    mixed_chunk: Floats  # (u,) prompt tokens in the step
    mixed_share: Floats  # (s,) decode share of the parts, from 0 to 1
    overlap: Floats  # (u * v * s,) time over the sum of the parts
    capture_sizes: Floats  # (g,) CUDA graph sizes in tokens; empty = no padding
    transfer: Floats  # (3,) latency_s, bytes per token, bandwidth in bytes/s
    limits: Floats  # (LIMITS,)
    options: Floats  # (OPTIONS,)


MIXED = ("mixed_batch", "mixed_context", "mixed_decode_s", "mixed_chunk", "mixed_share", "overlap")


def vector(values: object) -> Floats:
    """A float64, one-dimensional, C-contiguous copy."""
    return np.array(values, dtype=np.float64).reshape(-1)


def additive() -> dict[str, Floats]:
    """The fields of tables whose mixed steps are sums."""
    return {name: vector([]) for name in MIXED}


def default_options(max_chunk_tokens: float) -> Floats:
    """Options of an engine without speculative decoding."""
    options = np.zeros(OPTIONS)
    options[MAX_CHUNK] = max_chunk_tokens
    options[VERIFIED] = options[EMITTED] = 1.0
    return options


def transfer_vector(latency_s: float, bytes_per_token: float, bandwidth_bytes_s: float) -> Floats:
    """`StepTables.transfer`."""
    return vector([latency_s, bytes_per_token, bandwidth_bytes_s])


def linear_tables(
    base_s: float,
    per_sequence_s: float,
    per_context_token_s: float,
    per_prefill_token_s: float,
    per_prefill_pair_s: float,
    max_chunk_tokens: int,
    kv_latency_s: float,
    kv_bytes_per_token: float,
    kv_bandwidth_bytes_s: float,
) -> StepTables:
    """One linear piece: base + s*batch + c*context + p*chunk + q*pairs. Never extrapolates."""
    at = vector([0.0, _FAR])
    chunk = vector([0.0, max_chunk_tokens])
    return StepTables(
        dense_tokens=vector([0.0]),
        dense_s=vector([base_s]),
        sequences=vector([]),
        sequence_s=vector([]),
        batch=vector([0.0, 1.0]),
        context=at,
        decode_s=vector([0.0 * at, per_sequence_s + per_context_token_s * at]),
        chunk=chunk,
        attended=at,
        prefill_s=vector([x * (per_prefill_token_s + per_prefill_pair_s * at) for x in chunk]),
        capture_sizes=vector([]),
        transfer=transfer_vector(kv_latency_s, kv_bytes_per_token, kv_bandwidth_bytes_s),
        limits=np.full(LIMITS, np.inf),
        options=default_options(max_chunk_tokens),
        **additive(),
    )


def scaled(tables: StepTables, slowdown: float) -> StepTables:
    """The same worker with every computing time multiplied by `slowdown`; transfers unchanged."""
    times = [name for name in StepTables._fields if name.endswith("_s")]
    return tables._replace(**{name: getattr(tables, name) * slowdown for name in times})


def pack(tables: StepTables) -> tuple[Floats, NDArray[np.int64]]:
    """All vectors behind one another, and the bounds of each: (total,), (fields + 1,)."""
    lengths = [len(field) for field in tables]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(tables), bounds
