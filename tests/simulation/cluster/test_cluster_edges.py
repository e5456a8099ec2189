# SPDX-License-Identifier: Apache-2.0
"""The fast simulator against the reference where things coincide.

Prompts of whole blocks that others have computed, are computing, or that fill their last block in
the very step in which somebody else looks for it; arrivals, ends, failures and drains at one
instant. All times of these clusters are round, so that they do coincide.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cluster_kit import clusters, options
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_cluster_exactness import assert_same

from controller.costs.tables import linear_tables
from controller.simulation.cluster.events import ClusterEvent, EventKind, in_order
from controller.simulation.cluster.simulate import simulate
from controller.simulation.cluster.spec import ClusterSpec
from controller.simulation.workloads.rows import conversations, template_heads
from controller.simulation.workloads.workload import Workload

# The first one compiles the kernels: a minute of processor time.
pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

BLOCK = 8  # of the workloads; those of the engines divide it
TICK_S = 0.01
# A tick a step and a transfer; and tenths of a millisecond by batch, context and tokens.
TICKS = linear_tables(TICK_S, 0.0, 0.0, 0.0, 0.0, 64, TICK_S, 1.0, 1e12)
TENTHS = linear_tables(TICK_S, 0.001, 0.0001, 0.001, 0.0, 64, 0.005, 1.0, 10_000.0)

quick = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def round_clusters(draw: st.DrawFn, unsteady: bool = False) -> ClusterSpec:
    """Clusters whose steps and transfers take whole ticks, or tenths of milliseconds."""
    drawn = draw(clusters(unsteady=unsteady))
    costs = tuple(draw(st.sampled_from([TICKS, TICKS, TENTHS])) for _ in drawn.costs)
    engines = tuple(
        replace(engine, cold_start_s=draw(st.sampled_from([0.0, TICK_S])), kv_lease_s=0.1)
        for engine in drawn.engines
    )
    events = tuple(
        ClusterEvent(round(event.at_s / TICK_S) * TICK_S, event.worker, event.kind)
        for event in drawn.events
    )
    return replace(drawn, costs=costs, engines=engines, events=tuple(in_order(events)))


@st.composite
def same_prompts(draw: st.DrawFn, rounds: int) -> Workload:
    """Sessions that begin with one of few prompts of whole blocks, at few instants.

    Later rounds fill their last block too, or add a single token.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sessions = draw(st.integers(2, 10))
    each = rng.integers(1, rounds + 1, sessions)
    total, first = int(each.sum()), np.cumsum(each) - each
    template = rng.integers(0, draw(st.integers(1, 3)), sessions)
    whole = BLOCK * rng.integers(1, 6, 3)
    output = rng.integers(1, draw(st.sampled_from([3, 20])), total)
    new = np.ones(total, np.int64)
    for start, count, tokens in zip(first, each, whole[template], strict=True):
        new[start] = tokens
        for row in range(start + 1, start + count):
            said = new[start:row].sum() + output[start:row].sum()
            new[row] = rng.choice([1, BLOCK - said % BLOCK])
    return conversations(
        "same",
        TICK_S * rng.integers(0, draw(st.sampled_from([1, 4, 20])), sessions),
        each,
        new,
        output,
        TICK_S * rng.integers(0, 3, total),
        heads=template_heads(template, whole, BLOCK),
    )


@quick
@given(workload=same_prompts(1), cluster=round_clusters(), chosen=options())
def test_prompts_that_are_there_already_are_served_as_step_by_step(workload, cluster, chosen):
    assert_same(workload, cluster, chosen)


@quick
@given(workload=same_prompts(3), cluster=round_clusters(), chosen=options())
def test_a_block_that_is_filled_at_this_instant_is_found_or_not_as_step_by_step(
    workload, cluster, chosen
):
    assert_same(workload, cluster, chosen)


@quick
@given(workload=same_prompts(3), cluster=round_clusters(unsteady=True), chosen=options())
def test_events_at_the_instant_of_arrivals_and_ends_act_as_step_by_step(workload, cluster, chosen):
    assert_same(workload, cluster, chosen)


def test_the_random_cases_contain_what_they_are_meant_to_cover():
    seen: Counter[str] = Counter()

    @settings(quick, database=None, suppress_health_check=list(HealthCheck))
    @given(workload=same_prompts(3), cluster=round_clusters(unsteady=True), chosen=options())
    def count(workload, cluster, chosen):
        result = simulate(workload, cluster, chosen)
        size = min(engine.block_size for engine in cluster.engines)
        most = (workload.prompt_tokens - 1) // size * size
        seen["all but the last block found"] += (result.hit_tokens == most)[most > 0].any()
        instants = {round(1e4 * event.at_s) for event in cluster.events}
        for name, times in (("arrival", result.arrival_s), ("end", result.finish_s)):
            known = np.round(1e4 * times[~np.isnan(times)])
            seen[f"event at an {name}"] += bool(instants & set(known.astype(int).tolist()))
        kinds = {event.kind for event in cluster.events}
        seen["drain"] += EventKind.DRAIN in kinds
        seen["failure"] += EventKind.FAIL in kinds

    count()
    assert min(seen.values()) >= 15 and len(seen) == 5, seen
