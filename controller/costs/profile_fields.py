# SPDX-License-Identifier: Apache-2.0
"""The fields of a profile file, schema `equilibrium.profile/2`.

Owns: names, units and single-field rules (pydantic, unknown keys refused). Does not own: rules
across tables (checks), conversion to seconds (profile_steps).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Row = Annotated[list[NonNegative], Field(min_length=1)]
Table = Annotated[list[Row], Field(min_length=1)]


class Fields(BaseModel):
    """Strict and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _shape(name: str, table: list[list[float]], rows: int, columns: int) -> None:
    """Raises ValueError unless `table` is rows x columns."""
    if len(table) != rows:
        raise ValueError(f"{name}: {len(table)} rows for a grid of {rows}")
    for number, row in enumerate(table):
        if len(row) != columns:
            raise ValueError(f"{name}: row {number} has {len(row)} values, expected {columns}")


class Parallelism(Fields):
    """How one worker is spread over GPUs; data-parallel replicas are workers of their own."""

    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    ep: Count = 1


class Engine(Fields):
    """The engine that was measured or modelled, and its limits."""

    name: Text
    version: Text
    max_num_batched_tokens: Count = Field(description="prompt and decode tokens in one step")
    max_num_seqs: Count = 256
    block_size: Count = 16
    num_gpu_blocks: Count | None = None
    capture_sizes: list[Count] = Field(default=[], description="CUDA graph sizes in tokens")
    pad_mixed: bool = Field(default=False, description="pad steps with prompt tokens too")


class DenseTable(Fields):
    """What depends on the tokens in the step only, base included."""

    tokens: Row
    ms: Row


class SequenceTable(Fields):
    """Head, sampler and host work by sequences in the step."""

    sequences: Row
    ms: Row


class DecodeTable(Fields):
    """Attention of pure decode steps: ms[batch][context], context in KV tokens a sequence."""

    batch: Row
    context: Row
    ms: Table
    max_batch: NonNegative | None = Field(default=None, description="beyond it extrapolates")
    max_context: NonNegative | None = Field(default=None, description="beyond it extrapolates")

    @model_validator(mode="after")
    def _shapes(self) -> DecodeTable:
        _shape("ms", self.ms, len(self.batch), len(self.context))
        return self


class PrefillTable(Fields):
    """Attention of pure prefill steps: ms[chunk][attended], attended = history + chunk/2."""

    chunk: Row
    attended: Row
    ms: Table
    max_chunk: NonNegative | None = Field(default=None, description="beyond it extrapolates")
    max_attended: NonNegative | None = Field(default=None, description="beyond it extrapolates")

    @model_validator(mode="after")
    def _shapes(self) -> PrefillTable:
        _shape("ms", self.ms, len(self.chunk), len(self.attended))
        return self


class MixedTable(Fields):
    """Attention of mixed steps: (prefill part + decode part) * overlap[chunk][batch][share].

    decode_ms[batch][context] is the decode part as the mixed kernel computes it; share is its
    share of the sum, from 0 to 1.
    """

    batch: Row
    context: Row
    decode_ms: Table
    chunk: Row
    share: Row
    overlap: Annotated[list[Table], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> MixedTable:
        _shape("decode_ms", self.decode_ms, len(self.batch), len(self.context))
        if len(self.overlap) != len(self.chunk):
            raise ValueError(f"overlap: {len(self.overlap)} rows for a grid of {len(self.chunk)}")
        for row in self.overlap:
            _shape("overlap", row, len(self.batch), len(self.share))
        return self


class Step(Fields):
    """The tables of one engine step; without `mixed`, decodes and prompts add up."""

    dense: DenseTable
    per_sequence: SequenceTable | None = None
    decode: DecodeTable
    prefill: PrefillTable
    mixed: MixedTable | None = None


class KvTransfer(Fields):
    """Moving KV between two workers: latency + bytes/bandwidth."""

    latency_ms: NonNegative
    bytes_per_token: Positive
    bandwidth_gb_s: Positive


class Speculation(Fields):
    """Speculative decoding, a sequence and decode step."""

    verified_tokens: Count = Field(description="tokens computed: 1 + drafts")
    emitted_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        description="tokens emitted, mean: 1 + accepted drafts"
    )


class Range(Fields):
    """Absolute percentage errors of some predictions."""

    median_pct: NonNegative
    p95_pct: NonNegative
    count: Count


class FitError(Fields):
    """How wrong the fit was on data that it had not seen."""

    held_out: Text
    overall: Range
    by_kind: dict[str, Range] = {}


class ProfileFields(Fields):
    """All fields of a profile file."""

    schema_version: Literal["equilibrium.profile/2"] = Field(alias="schema")
    name: Text
    provenance: Text = Field(description="where the numbers come from")
    license: Text
    model: Text
    gpu: Text
    precision: Text
    parallelism: Parallelism
    engine: Engine
    step: Step
    kv_transfer: KvTransfer
    speculation: Speculation | None = None
    fit_error: FitError | None = Field(default=None, description="null: not fitted")
