# SPDX-License-Identifier: Apache-2.0
"""The measured price of anarchy against the true one, on simulated windows small enough to
enumerate.

Owns: windows of a simulated run, their true social optimum, what the estimator makes of the same
records. Does not own: the estimator, the figures.

**Truth.** Prefill workers meet only at the router. So what a worker makes of a set of requests is
found by simulating that worker alone: what it had before the window, the set, and those who were
sent to it after the window. All 2^n sets at each of the m workers give the cost of every one of the
m^n assignments, and the best of them by dynamic programming over sets: the simulator is the judge,
with its batching, its in-flight bound, its hand-over. Cost: time from arrival to the end of the
prefill (or misses of a limit) of the window's requests, and the waiting of those after it.

**Estimate.** What a decision log says of the same window: predicted times and queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from controller.costs.model import TableCost
from controller.engine.values import EngineSpec
from controller.estimation.poa.loss import Goal, window_loss
from controller.estimation.poa.window import PlacementWindow, make_window
from controller.runtime.resources import read_profile
from controller.simulation.cluster import SimOptions, SimResult, simulate, uniform_cluster
from controller.simulation.workloads.rows import single_rounds
from controller.types import FloatArray, IntArray

PROFILE = "llama31_70b_tp4_h100"
WORKERS, REQUESTS = 3, 5
BEFORE, AFTER = 24, 9
LIMIT_S = 1.0
RULES = ("round_robin", "kv_cost", "always_remote")
LENGTH_S = 90.0
ENGINE = EngineSpec(block_size=64, num_blocks=8192, max_num_batched_tokens=8192, max_num_seqs=256)


@dataclass(frozen=True, slots=True)
class Pair:
    """One window: the true ratio and the estimated one, `None` where nothing can be divided by."""

    true: float | None
    estimated: float | None


@cache
def costs() -> TableCost:
    """The workers' cost model."""
    return read_profile(PROFILE).cost_model()


def run_of(load: float, rule: str, seed: int) -> SimResult:
    """A run at a share of the prefill pool's capacity."""
    rng = np.random.default_rng([seed, int(load * 100)])
    lengths = np.clip(2048 * np.exp(0.7 * rng.standard_normal(6000)), 64, 8000).astype(np.int64)
    mean_s = float(np.mean([costs().prefill_s(0, int(n)) for n in lengths[:400]]))
    arrival = np.cumsum(rng.exponential(mean_s / (load * WORKERS), 6000))
    count = int((arrival < LENGTH_S).sum())
    load_of = single_rounds("calibration", arrival[:count], lengths[:count], np.full(count, 2))
    cluster = uniform_cluster(WORKERS, 4, ENGINE, costs().tables)
    return simulate(load_of, cluster, SimOptions(rule, seed=seed, gaps=False))


def windows_at(result: SimResult, count: int, seed: int) -> list[int]:
    """First rows of `count` windows in the later two thirds of a run."""
    last = len(result.arrival_s) - REQUESTS - 3 * AFTER
    rng = np.random.default_rng(seed)
    return sorted(rng.choice(np.arange(last // 3, last), count, replace=False).tolist())


def pair(result: SimResult, first: int, goal: Goal) -> Pair:
    """Truth and estimate of one window."""
    done, best = true_costs(result, first, goal)
    loss = window_loss(recorded(result, first), goal)
    return Pair(_ratio(done, best), _ratio(loss.done, loss.best))


def _ratio(done: float, best: float) -> float | None:
    if best > 1e-9:
        return done / best
    return 1.0 if done <= 1e-9 else None


def true_costs(result: SimResult, first: int, goal: Goal) -> tuple[float, float]:
    """(cost of what was done, cost of the best assignment), by the simulator."""
    sets = 1 << REQUESTS
    table = np.array(
        [
            [_judged(result, first, worker, s, goal) for s in range(sets)]
            for worker in range(WORKERS)
        ]
    )
    chosen = result.prefill_worker[first : first + REQUESTS]
    done = sum(
        float(table[worker, sum(1 << i for i in range(REQUESTS) if chosen[i] == worker)])
        for worker in range(WORKERS)
    )
    return done, float(_best_partition(table))


def _best_partition(table: FloatArray) -> float:
    """Least sum over workers of table[worker, set] over partitions of all requests."""
    full = table.shape[1] - 1
    least = table[0].copy()
    for worker in range(1, len(table)):
        following = np.empty_like(least)
        for whole in range(full + 1):
            part, found = whole, least[whole] + table[worker, 0]
            while part:
                found = min(found, least[whole ^ part] + table[worker, part])
                part = (part - 1) & whole
            following[whole] = found
        least = following
    return float(least[full])


def _judged(result: SimResult, first: int, worker: int, chosen: int, goal: Goal) -> float:
    """Cost of a set of the window's requests, and of those after it, at one worker."""
    before = _of_worker(result, worker, np.arange(first))[-BEFORE:]
    mine = np.array([first + i for i in range(REQUESTS) if chosen >> i & 1], np.int64)
    end = first + REQUESTS
    after = _of_worker(result, worker, np.arange(end, end + AFTER))
    rows = np.concatenate([before, mine, after]).astype(np.int64)
    if not len(mine) and not len(after):
        return 0.0
    waited = _alone(result, rows)
    mine_s = waited[len(before) : len(before) + len(mine)]
    after_s = waited[len(before) + len(mine) :] - _own(result, after)
    if goal is Goal.LATENCY:
        return float(mine_s.sum() + np.maximum(0.0, after_s).sum())
    late = mine_s > LIMIT_S
    late_after = waited[len(before) + len(mine) :] > LIMIT_S
    return float(late.sum() + late_after.sum())


def _of_worker(result: SimResult, worker: int, rows: IntArray) -> IntArray:
    found: IntArray = rows[result.prefill_worker[rows] == worker]
    return found


def _alone(result: SimResult, rows: IntArray) -> FloatArray:
    """(rows,) arrival to end of prefill with one prefill worker that serves these alone."""
    work = result.workload
    start_s = float(result.arrival_s[rows[0]])
    part = single_rounds(
        "alone",
        result.arrival_s[rows] - start_s,
        work.prompt_tokens[rows],
        work.output_tokens[rows],
    )
    cluster = uniform_cluster(1, 2, ENGINE, costs().tables)
    found = simulate(part, cluster, SimOptions("always_remote", gaps=False))
    waited: FloatArray = found.prefill_end_s - found.arrival_s
    return waited


def _own(result: SimResult, rows: IntArray) -> FloatArray:
    lengths = result.workload.prompt_tokens[rows]
    return np.array([costs().prefill_s(0, int(n)) for n in lengths])


def recorded(result: SimResult, first: int) -> PlacementWindow:
    """The window as our router's log has it: predicted times, predicted queues, who went where."""
    rows = np.arange(first, first + REQUESTS)
    start_s = float(result.arrival_s[first])
    free = np.array([_queue_s(result, first, worker, start_s) for worker in range(WORKERS)])
    own = np.repeat(_own(result, rows)[:, None], WORKERS, axis=1)
    span_s = float(result.arrival_s[first + 30] - result.arrival_s[max(0, first - 30)])
    rate = (first + 30 - max(0, first - 30)) / span_s
    return make_window(
        result.arrival_s[rows] - start_s,
        own,
        np.full(REQUESTS, LIMIT_S),
        result.prefill_worker[rows],
        free,
        end_s=float(result.arrival_s[first + REQUESTS]) - start_s,
        rate_per_s=rate / WORKERS,
    )


def _queue_s(result: SimResult, first: int, worker: int, at_s: float) -> float:
    """Eq. 2's queue: predicted time of what is unfinished, less what has passed of it."""
    rows = _of_worker(result, worker, np.arange(first))
    ended = result.prefill_end_s[rows]
    open_rows = rows[~(ended <= at_s)]
    if not len(open_rows):
        return 0.0
    since_s = float(result.arrival_s[open_rows[0]])
    if (ended <= at_s).any():
        since_s = max(since_s, float(np.nanmax(ended[ended <= at_s])))
    return max(0.0, float(_own(result, open_rows).sum()) - (at_s - since_s))
