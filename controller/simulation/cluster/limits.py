# SPDX-License-Identifier: Apache-2.0
"""What the simulator can count to: a workload, cluster and options within it, or one clear line.

Owns: the limits that whole numbers of limited size and memory set. Does not own: what makes sense
(spec.py, workloads).
"""

from __future__ import annotations

import numpy as np

from controller.engine.values import EngineSpec
from controller.simulation.cluster.heaps import WIDTH
from controller.simulation.cluster.spec import ClusterSpec, SimOptions, SimulationError
from controller.simulation.workloads.workload import Workload

MOST_TOKENS = 1 << 28
"""Of a request, with its history."""
LATEST_S = 1e8
"""Of arrivals and pauses together."""
_MOST = (1 << 31) - 1
_MOST_KEPT = 1 << 20  # of what is kept for each worker
_MOST_WORDS = 1 << 28  # of what is kept for all workers together: 2 GiB
_ENGINE = {
    "num_blocks": _MOST,
    "max_num_batched_tokens": _MOST,
    "max_num_seqs": _MOST_KEPT,
    "block_size": _MOST_KEPT,
    "verified_tokens": _MOST_KEPT,
}
_OPTIONS = (
    "ordering_window",
    "passed_cap",
    "migration_limit",
    "local_chunk_tokens",
    "in_flight_steps",
    "seed",
)


def check_limits(workload: Workload, cluster: ClusterSpec, options: SimOptions) -> None:
    """Raises SimulationError for the first thing that is too large."""
    _check_lengths(workload)
    _check_times(workload)
    for engine in cluster.engines:
        for name, most in _ENGINE.items():
            _check("engine", name, getattr(engine, name), most)
    for name in _OPTIONS:
        _check("router", name, getattr(options, name), _MOST)
    words = sum(words_of(cluster.engines[worker.engine]) for worker in cluster.workers)
    if words > _MOST_WORDS:
        raise SimulationError(
            f"cluster: {len(cluster.workers):,} workers with up to "
            f"{max(engine.max_num_seqs for engine in cluster.engines):,} sequences each need "
            f"{words * 8 / 2**30:.0f} GiB; lower max_num_seqs"
        )


def words_of(engine: EngineSpec) -> int:
    """Words of `State.mem` that a worker takes: its heap of ends, its counts by residue."""
    return WIDTH * (engine.max_num_seqs + 1) + engine.block_size


def _check(where: str, name: str, value: int, most: int) -> None:
    if value > most:
        raise SimulationError(f"{where}: {name} is {value:,}; the simulator counts to {most:,}")


def _check_lengths(w: Workload) -> None:
    tokens = w.prompt_tokens + w.output_tokens
    if tokens.max() > MOST_TOKENS:
        row = int(np.argmax(tokens))
        raise SimulationError(
            f"{w.name}: request {row} has {tokens[row]:,} tokens with its history; the simulator "
            f"counts to {MOST_TOKENS:,}"
        )


def _check_times(w: Workload) -> None:
    latest_s = float(np.nanmax(w.arrival_s)) + float(w.think_s.sum())
    if latest_s > LATEST_S:
        raise SimulationError(
            f"{w.name}: arrivals and pauses reach {latest_s:.3g} s; the simulated clock ends at "
            f"{LATEST_S:.3g} s: subtract the first arrival, or cut the trace (--duration)"
        )
