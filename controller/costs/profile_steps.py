# SPDX-License-Identifier: Apache-2.0
"""Between the fields of a profile file (milliseconds, nested lists) and `StepTables` (seconds).

Owns: units and flattening in both directions. The fields have been validated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.costs.profile_fields import (
    DecodeTable,
    DenseTable,
    MixedTable,
    PrefillTable,
    ProfileFields,
    SequenceTable,
    Step,
)
from controller.costs.tables import (
    EMITTED,
    MAX_ATTENDED,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_STEP_CHUNK,
    PAD_MIXED,
    VERIFIED,
    Floats,
    StepTables,
    additive,
    default_options,
    transfer_vector,
    vector,
)

_LIMITS = (
    (MAX_BATCH, "decode", "max_batch"),
    (MAX_CONTEXT, "decode", "max_context"),
    (MAX_STEP_CHUNK, "prefill", "max_chunk"),
    (MAX_ATTENDED, "prefill", "max_attended"),
)

# Where a file holds each field of `StepTables`.
FILE_FIELDS = {
    "dense_tokens": "step.dense.tokens",
    "dense_s": "step.dense.ms",
    "sequences": "step.per_sequence.sequences",
    "sequence_s": "step.per_sequence.ms",
    "batch": "step.decode.batch",
    "context": "step.decode.context",
    "decode_s": "step.decode.ms",
    "chunk": "step.prefill.chunk",
    "attended": "step.prefill.attended",
    "prefill_s": "step.prefill.ms",
    "mixed_batch": "step.mixed.batch",
    "mixed_context": "step.mixed.context",
    "mixed_decode_s": "step.mixed.decode_ms",
    "mixed_chunk": "step.mixed.chunk",
    "mixed_share": "step.mixed.share",
    "overlap": "step.mixed.overlap",
    "capture_sizes": "engine.capture_sizes",
    "transfer": "kv_transfer",
    "limits": "step",
    "options": "speculation",
}


def tables_of(profile: ProfileFields) -> StepTables:
    """The tables of a profile in seconds."""
    step, transfer = profile.step, profile.kv_transfer
    sequences = step.per_sequence
    return StepTables(
        dense_tokens=vector(step.dense.tokens),
        dense_s=_seconds(step.dense.ms),
        sequences=vector(sequences.sequences if sequences else []),
        sequence_s=_seconds(sequences.ms if sequences else []),
        batch=vector(step.decode.batch),
        context=vector(step.decode.context),
        decode_s=_seconds(step.decode.ms),
        chunk=vector(step.prefill.chunk),
        attended=vector(step.prefill.attended),
        prefill_s=_seconds(step.prefill.ms),
        capture_sizes=vector(profile.engine.capture_sizes),
        transfer=transfer_vector(
            transfer.latency_ms / 1e3, transfer.bytes_per_token, transfer.bandwidth_gb_s * 1e9
        ),
        limits=_limits(step),
        options=_options(profile),
        **_mixed_vectors(step.mixed),
    )


def _seconds(ms: object) -> Floats:
    return vector(ms) / 1e3


def _mixed_vectors(mixed: MixedTable | None) -> dict[str, Floats]:
    if mixed is None:
        return additive()
    return {
        "mixed_batch": vector(mixed.batch),
        "mixed_context": vector(mixed.context),
        "mixed_decode_s": _seconds(mixed.decode_ms),
        "mixed_chunk": vector(mixed.chunk),
        "mixed_share": vector(mixed.share),
        "overlap": vector(mixed.overlap),
    }


def _options(profile: ProfileFields) -> Floats:
    options = default_options(profile.engine.max_num_batched_tokens)
    options[PAD_MIXED] = float(profile.engine.pad_mixed)
    if profile.speculation is not None:
        options[VERIFIED] = profile.speculation.verified_tokens
        options[EMITTED] = profile.speculation.emitted_tokens
    return options


def _limits(step: Step) -> Floats:
    found = [getattr(getattr(step, table), name) for _, table, name in _LIMITS]
    return vector([np.inf if value is None else value for value in found])


def step_of(t: StepTables) -> Step:
    """The step fields of tables that keep the rules."""
    limits = {
        name: float(t.limits[place]) if np.isfinite(t.limits[place]) else None
        for place, _, name in _LIMITS
    }
    return Step(
        dense=DenseTable(tokens=t.dense_tokens.tolist(), ms=_ms(t.dense_s)),
        per_sequence=_sequences(t),
        decode=DecodeTable(
            batch=t.batch.tolist(),
            context=t.context.tolist(),
            ms=_ms(t.decode_s, len(t.batch), -1),
            max_batch=limits["max_batch"],
            max_context=limits["max_context"],
        ),
        prefill=PrefillTable(
            chunk=t.chunk.tolist(),
            attended=t.attended.tolist(),
            ms=_ms(t.prefill_s, len(t.chunk), -1),
            max_chunk=limits["max_chunk"],
            max_attended=limits["max_attended"],
        ),
        mixed=_mixed(t),
    )


def _ms(seconds: Floats, *shape: int) -> list[Any]:
    return _nested(seconds * 1e3, *shape)


def _nested(values: Floats, *shape: int) -> list[Any]:
    found: Any = values.reshape(shape or (-1,)).tolist()
    return list(found)


def _sequences(t: StepTables) -> SequenceTable | None:
    if len(t.sequences) == 0:
        return None
    return SequenceTable(sequences=t.sequences.tolist(), ms=_ms(t.sequence_s))


def _mixed(t: StepTables) -> MixedTable | None:
    if len(t.overlap) == 0:
        return None
    shape = (len(t.mixed_chunk), len(t.mixed_batch), -1)
    return MixedTable(
        batch=t.mixed_batch.tolist(),
        context=t.mixed_context.tolist(),
        decode_ms=_ms(t.mixed_decode_s, len(t.mixed_batch), -1),
        chunk=t.mixed_chunk.tolist(),
        share=t.mixed_share.tolist(),
        overlap=_nested(t.overlap, *shape),
    )


def engine_vectors(t: StepTables) -> dict[str, object]:
    """What the tables say about the engine."""
    sizes = [int(size) for size in t.capture_sizes]
    return {"capture_sizes": sizes, "pad_mixed": bool(t.options[PAD_MIXED])}


def rounded(t: StepTables) -> StepTables:
    """Times with five significant digits and overlaps with four decimals, as files hold them."""
    times = {name: _significant(getattr(t, name)) for name in t._fields if name.endswith("_s")}
    return t._replace(overlap=np.round(t.overlap, 4), **times)


def _significant(values: Floats) -> Floats:
    return vector([float(f"{value:.5g}") for value in values])
