# SPDX-License-Identifier: Apache-2.0
"""Random small clusters and workloads, tight enough that everything happens in them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from controller.costs.tables import StepTables, linear_tables, vector
from controller.engine import EngineSpec
from controller.routing.kernels.orderings import ORDERINGS
from controller.simulation.cluster.clock import NEVER
from controller.simulation.cluster.compiled import entry
from controller.simulation.cluster.events import ClusterEvent, EventKind, in_order
from controller.simulation.cluster.links import settle_pins
from controller.simulation.cluster.placement import PLACEMENTS
from controller.simulation.cluster.spec import ClusterSpec, SimOptions, Worker
from controller.simulation.cluster.state import State
from controller.simulation.workloads.rows import conversations, single_rounds, template_heads
from controller.simulation.workloads.workload import Workload
from controller.types import RoutingParams, Slo, TollParams

# 10 ms a step, 1 ms a prompt token, 0.1 ms a KV token moved: arithmetic by head.
COSTS = linear_tables(0.010, 0.0, 0.0, 0.001, 0.0, 512, 0.0, 1.0, 10_000.0)
ENGINE = EngineSpec(block_size=16, num_blocks=600, max_num_batched_tokens=512, max_num_seqs=16)


def requests(*rows: tuple[float, int, int]) -> Workload:
    """(arrival, prompt, output) each."""
    arrival, prompt, output = zip(*rows, strict=True)
    return single_rounds("rows", np.array(arrival, float), np.array(prompt), np.array(output))


def two_rounds() -> Workload:
    """160 prompt and 4 output tokens; 1 s after their end 16 more, and 4."""
    return conversations(
        "session",
        np.zeros(1),
        np.array([2]),
        np.array([160, 16]),
        np.array([4, 4]),
        np.full(2, 1.0),
    )


def tables(rng: np.random.Generator, bent: bool) -> StepTables:
    """Step times with odd numbers, so that two events coincide only when they should."""
    linear = linear_tables(
        base_s=rng.uniform(0.003, 0.012),
        per_sequence_s=rng.uniform(0, 0.0005),
        per_context_token_s=rng.uniform(0, 0.00005),
        per_prefill_token_s=rng.uniform(0.0001, 0.001),
        per_prefill_pair_s=rng.uniform(0, 0.00001),
        max_chunk_tokens=64,
        kv_latency_s=rng.uniform(0, 0.004),
        kv_bytes_per_token=1000,
        kv_bandwidth_bytes_s=rng.uniform(5e4, 1e6),
    )
    if not bent:
        return linear
    # Knots in context and in batch, and captured sizes of a graph.
    per_batch = np.array([[1.0], [1.7], [2.6]]) * np.array([[0.0, 0.001, 0.004, 0.005]])
    return linear._replace(
        batch=vector([1, 2, 4]),
        context=vector([0, 8, 20, 60]),
        decode_s=vector(rng.uniform(0.5, 2) * per_batch),
        capture_sizes=vector([1, 2, 4, 8]),
    )


@st.composite
def engines(draw: st.DrawFn) -> EngineSpec:
    verified, emitted = draw(st.sampled_from([*[(1, 1.0)] * 3, (2, 1.6), (4, 2.5), (3, 3.0)]))
    return EngineSpec(
        verified_tokens=verified,
        emitted_tokens=emitted,
        async_scheduling=draw(st.sampled_from([False, False, True])),
        block_size=draw(st.sampled_from([2, 4, 8])),
        num_blocks=draw(st.integers(12, 45)),
        max_num_batched_tokens=draw(st.integers(4, 40)),
        max_num_seqs=draw(st.integers(1, 6)),
        prefix_cache=draw(st.booleans()) or draw(st.booleans()),
        watermark_blocks=draw(st.sampled_from([0, 0, 2])),
        prefill_first=draw(st.sampled_from([False, False, True])),
        reserve_prompt=draw(st.sampled_from([False, False, True])),
        charge_prefill=draw(st.sampled_from([True, True, False])),
        kv_lease_s=draw(st.sampled_from([0.02, 0.3])),
        cold_start_s=draw(st.sampled_from([0.0, 0.013])),
    )


@st.composite
def events(draw: st.DrawFn, workers: int) -> tuple[ClusterEvent, ...]:
    """Some at the same instant, some senseless: a join of one that is there, a second failure."""
    times = st.one_of(
        st.sampled_from([0.0, 0.01, 0.02, 0.05]), st.integers(1, 200).map(lambda ms: ms / 999)
    )
    kinds = st.sampled_from([EventKind.FAIL, EventKind.JOIN, EventKind.JOIN, *EventKind])
    event = st.builds(ClusterEvent, times, st.integers(0, workers - 1), kinds)
    found = draw(st.lists(event, min_size=2, max_size=12))
    if draw(st.booleans()):  # one worker after the other
        first_s = draw(times)
        found += [ClusterEvent(first_s + w / 500, w, EventKind.FAIL) for w in range(workers - 1)]
    return tuple(in_order(found))


@st.composite
def clusters(draw: st.DrawFn, unsteady: bool = False) -> ClusterSpec:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = draw(st.lists(engines(), min_size=1, max_size=2))
    costs = [tables(rng, draw(st.booleans())) for _ in range(draw(st.integers(1, 2)))]

    def pool(low: int, high: int) -> tuple[Worker, ...]:
        count = draw(st.integers(low, high))
        return tuple(
            Worker(
                draw(st.integers(0, len(kinds) - 1)),
                draw(st.integers(0, len(costs) - 1)),
                draw(st.integers(0, 4)) > 0 or not unsteady,
            )
            for _ in range(count)
        )

    prefill, decode = (pool(1, 4), pool(2, 4)) if unsteady else (pool(0, 3), pool(1, 3))
    return ClusterSpec(
        tuple(kinds),
        tuple(costs),
        prefill,
        decode,
        contention=draw(st.booleans()),
        events=draw(events(len(prefill) + len(decode))) if unsteady else (),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Sessions of one to three rounds, some with a common head, dense enough to queue."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sessions = draw(st.integers(1, 10))
    rounds = rng.integers(1, 4, sessions)
    total = int(rounds.sum())
    arrival_s = np.sort(rng.uniform(0, draw(st.sampled_from([0.001, 0.05, 0.5])), sessions))
    if draw(st.booleans()):
        arrival_s = np.round(arrival_s, 2)  # many at one instant
    think_s = rng.uniform(0, 0.05, total) * rng.integers(0, 2, total)
    template = rng.integers(-1, 3, sessions)
    heads = template_heads(template, rng.integers(0, 40, 3), 8)
    new = rng.integers(1, draw(st.sampled_from([8, 40])), total)
    first = np.cumsum(rounds) - rounds
    new[first] = np.maximum(new[first], np.diff(heads.starts) * 8)
    return conversations(
        "random",
        arrival_s,
        rounds,
        new,
        rng.integers(1, draw(st.sampled_from([3, 20, 60])), total),
        think_s,
        heads=heads,
    )


@st.composite
def options(draw: st.DrawFn) -> SimOptions:
    return SimOptions(
        placement=draw(st.sampled_from([*PLACEMENTS, "toll", "deflect"])),
        ordering=(ordering := draw(st.sampled_from([*ORDERINGS, "fifo"]))),
        ordering_window=draw(st.integers(1, 5 if ordering == "algorithm_2" else 8)),
        late_share=draw(st.sampled_from([0.0, 0.0, 0.3])),
        max_wait_s=draw(st.sampled_from([math.inf, math.inf, 0.1])),
        passed_cap=draw(st.sampled_from([0, 0, 2])),
        reject=draw(st.sampled_from([False, False, False, True])),
        binding=draw(st.sampled_from(["least_context", "round_robin"])),
        slo=Slo(draw(st.sampled_from([5.0, 50.0])), draw(st.sampled_from([9.0, 30.0]))),
        params=RoutingParams(
            window_s=draw(st.sampled_from([0.05, 10.0])),
            toll=TollParams(expected_error=draw(st.sampled_from([0.0, 0.2]))),
        ),
        local_chunk_tokens=draw(st.sampled_from([0, 0, 3])),
        in_flight_steps=draw(st.integers(1, 2)),
        report_delay_s=draw(st.sampled_from([0.0, 0.0, 0.005, 0.1])),
        transfer=draw(st.sampled_from(["recompute", "history_read"])),
        migration_limit=draw(st.sampled_from([0, 1, 3])),
        seed=draw(st.integers(0, 1000)),
    )


@entry
def _settle(s: State) -> None:
    for w in range(s.wrk.size):
        settle_pins(s, w, NEVER - 1)


def blocks_in_use(s: State) -> list[int]:
    """Blocks that each worker lacks once all pulls and leases are over."""
    _settle(s)
    listed = np.zeros(len(s.wrk), np.int64)
    for w, head in enumerate(s.wrk["lru_head"]):
        at = int(head)
        while at >= 0:
            listed[w] += s.hold[at].high - s.hold[at].low
            at = int(s.hold[at].next)
    assert list(listed) == list(s.wrk["free"])
    return list(s.wrk["num_blocks"] - s.wrk["free"])
