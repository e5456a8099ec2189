# SPDX-License-Identifier: Apache-2.0
"""Dynamo's own offline replay of a workload, and step times that both it and we can read.

Owns: the profile file (npz) of `dynamo.mocker`, the same numbers as `StepTables`, a workload as a
Mooncake trace, the call of `dynamo.replay`. Does not own: our simulator, workloads.

A profile is a line over prompt tokens of a step, and a table over (KV tokens that the worker holds,
mean context of the batch) for a decode step; both are interpolated linearly. What our tables ask
for is (batch, context a sequence): KV tokens held are then batch * context. Dynamo counts them in
whole blocks, half a block a sequence more; `decode_tables` can add that.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controller.costs.tables import (
    LIMITS,
    Floats,
    StepTables,
    additive,
    default_options,
    transfer_vector,
    vector,
)
from controller.errors import UserError
from controller.simulation.workloads.workload import Workload, engine_block_ids


@dataclass(frozen=True, slots=True, eq=False)
class StepProfile:
    """What `planner_profile_data` names, in memory; milliseconds and tokens."""

    prompt_tokens: Floats
    prefill_ms: Floats
    held_tokens: Floats
    context_tokens: Floats
    decode_ms: Floats
    """(held, context)."""
    bytes_per_token: int
    bandwidth_gb_s: float

    def write(self, path: Path) -> None:
        """As the mocker reads it."""
        np.savez(
            path,
            prefill_isl=self.prompt_tokens,
            prefill_ttft_ms=self.prefill_ms,
            decode_active_kv_tokens=self.held_tokens,
            decode_context_length=self.context_tokens,
            decode_itl=self.decode_ms,
        )

    def decode_step_ms(self, held: float, column: int) -> float:
        """At one of the table's contexts."""
        return float(np.interp(held, self.held_tokens, self.decode_ms[:, column]))


def prefill_tables(profile: StepProfile, budget: int) -> StepTables:
    """A prefill worker: a step takes what its prompt tokens take, whosever they are."""
    return _tables(
        profile,
        budget,
        dense=(profile.prompt_tokens, profile.prefill_ms / 1e3),
        batch=vector([0, 1]),
        decode_s=np.zeros((2, len(profile.context_tokens))),
    )


def decode_tables(profile: StepProfile, budget: int, seats: int, block_tokens: int) -> StepTables:
    """A decode worker; `block_tokens` 0 counts tokens, else the mean of counting whole blocks."""
    batch = np.unique(np.append(2 ** np.arange(int(np.log2(seats)) + 1), seats))
    rest = (block_tokens - 1) / 2 if block_tokens else 0.0
    step_ms = [
        [profile.decode_step_ms(b * (k + rest), i) for i, k in enumerate(profile.context_tokens)]
        for b in batch
    ]
    return _tables(
        profile,
        budget,
        dense=(vector([0]), vector([0])),
        batch=vector(batch),
        decode_s=np.array(step_ms) / 1e3,
    )


def _tables(
    profile: StepProfile, budget: int, dense: tuple[Floats, Floats], batch: Floats, decode_s: Any
) -> StepTables:
    return StepTables(
        dense_tokens=vector(dense[0]),
        dense_s=vector(dense[1]),
        sequences=vector([]),
        sequence_s=vector([]),
        batch=batch,
        context=vector(profile.context_tokens),
        decode_s=vector(decode_s),
        chunk=vector([0, budget]),
        attended=vector([0, 1]),
        prefill_s=np.zeros(4),
        capture_sizes=vector([]),
        transfer=transfer_vector(0.0, profile.bytes_per_token, profile.bandwidth_gb_s * 1e9),
        limits=np.full(LIMITS, np.inf),
        options=default_options(budget),
        **additive(),
    )


def write_trace(workload: Workload, path: Path, block_tokens: int) -> None:
    """One JSON object a request. A started last block gets an id of its own."""
    longest = int(workload.prompt_tokens.max()) // block_tokens + 1
    private = len(workload.block_ids) * max(1, workload.block_tokens // block_tokens)
    chained = bool((workload.after >= 0).any())
    with path.open("w") as file:
        for row in range(len(workload)):
            ids = engine_block_ids(workload, row, block_tokens)
            # Ours are negative where nobody else can have the block; theirs count upwards.
            ids = np.where(ids < 0, private - 1 - ids, ids)
            if workload.prompt_tokens[row] % block_tokens:
                last = private + int(workload.stream[row]) * longest + len(ids)
                ids = np.append(ids, last)
            file.write(json.dumps(_line(workload, row, ids, chained)) + "\n")


def _line(workload: Workload, row: int, ids: Any, chained: bool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "input_length": int(workload.prompt_tokens[row]),
        "output_length": int(workload.output_tokens[row]),
        "hash_ids": [int(i) for i in ids],
    }
    if workload.after[row] >= 0:
        line["delay"] = workload.think_s[row] * 1e3
    else:
        line["timestamp"] = workload.arrival_s[row] * 1e3
    if chained:
        line["session_id"] = f"s{workload.session[row]}"
    return line


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """A disaggregated cluster as the replay takes it."""

    prefill: int
    decode: int
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    prefill_seats: int
    decode_seats: int


def run_replay(trace: Path, npz: Path, profile: StepProfile, spec: ReplaySpec) -> dict[str, Any]:
    """The replay's own report: round robin on both sides, no prefix cache on decode workers."""
    os.environ.setdefault("DYN_LOG", "off")
    try:
        from dynamo.mocker import MockEngineArgs
        from dynamo.replay import run_trace_replay
    except ImportError as error:
        raise UserError(f"dynamo.replay is missing ({error}): pip install ai-dynamo") from error

    def engine(role: str, seats: int, cache: bool) -> Any:
        return MockEngineArgs(
            worker_type=role,
            block_size=spec.block_size,
            num_gpu_blocks=spec.num_blocks,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_num_seqs=seats,
            enable_prefix_caching=cache,
            planner_profile_data=str(npz),
            kv_bytes_per_token=profile.bytes_per_token,
            kv_transfer_bandwidth=profile.bandwidth_gb_s,
        )

    report: dict[str, Any] = run_trace_replay(
        str(trace),
        prefill_engine_args=engine("prefill", spec.prefill_seats, True),
        decode_engine_args=engine("decode", spec.decode_seats, False),
        num_prefill_workers=spec.prefill,
        num_decode_workers=spec.decode,
        router_mode="round_robin",
        replay_mode="offline",
        trace_block_size=spec.block_size,
    )
    return report
