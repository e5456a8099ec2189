# SPDX-License-Identifier: Apache-2.0
"""The fast simulator against the iterating reference, request by request."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from cluster_kit import blocks_in_use, clusters, options, workloads
from cluster_reference import Reference
from hypothesis import HealthCheck, Phase, given, settings

from controller.simulation.cluster.simulate import Simulation, simulate
from controller.simulation.cluster.spec import Status
from controller.simulation.cluster.token_gaps import token_gaps

# The first one compiles the kernels: a minute of processor time.
pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]

TOLERANCE_S = 1e-6


def assert_same(workload, cluster, chosen):
    expected = Reference(workload, cluster, chosen)
    served = expected.run()
    run = Simulation(workload, cluster, chosen)
    assert not run.advance()
    result = run.result()
    assert not any(blocks_in_use(run.state))
    for r, want in enumerate(served):
        got = Status(int(result.status[r])).name.lower()
        assert got == ("never_issued" if want.status == "pending" else want.status), r
        if got != "served":
            continue
        place = "local" if result.place[r] else "remote"
        assert (place, result.decode_worker[r]) == (want.place, want.decode_worker), r
        assert result.prefill_worker[r] == want.prefill_worker, r
        assert result.read_tokens[r] == want.read_tokens, r
        got_s = [result.sent_s[r], result.first_token_s[r], result.finish_s[r]]
        want_s = [want.sent_s, want.first_s, want.finish_s]
        assert np.allclose(got_s, want_s, rtol=0, atol=TOLERANCE_S), (r, got_s, want_s)
        gaps_s = np.diff(want.tokens_s)
        if len(gaps_s):
            got_s = [result.gap_p99_s[r], result.gap_max_s[r]]
            want_s = [np.percentile(gaps_s, 99), gaps_s.max()]
            assert np.allclose(got_s, want_s, rtol=0, atol=TOLERANCE_S), (r, got_s, want_s)
    want_s = [np.diff(each.tokens_s) for each in served if each.status == "served"]
    gap_s, weight = token_gaps(result.state)
    got_s = np.sort(np.repeat(gap_s, weight.astype(int)))
    assert np.allclose(got_s, np.sort(np.concatenate([*want_s, []])), rtol=0, atol=TOLERANCE_S)
    for name in ("preemptions", "hit_tokens"):
        assert list(result.counters[name]) == [w.total(name) for w in expected.workers]
    return expected, result


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(workload=workloads(), cluster=clusters(), chosen=options())
def test_every_request_is_served_at_the_same_time_as_step_by_step(workload, cluster, chosen):
    assert_same(workload, cluster, chosen)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(workload=workloads(), cluster=clusters(unsteady=True), chosen=options())
def test_the_same_while_workers_fail_join_drain_and_change_sides(workload, cluster, chosen):
    assert_same(workload, cluster, chosen)


def test_the_random_cases_contain_what_they_are_meant_to_cover():
    seen: Counter[str] = Counter()

    @settings(
        max_examples=200,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(workload=workloads(), cluster=clusters(), chosen=options())
    def count(workload, cluster, chosen):
        result = simulate(workload, cluster, chosen)
        budget = max(e.max_num_batched_tokens for e in cluster.engines)
        seen["preemption"] += result.counters["preemptions"].any()
        seen["prefix hit"] += result.counters["hit_tokens"].any()
        seen["transfer"] += (result.pulled_tokens > 0).any()
        seen["local"] += (result.place == 1).any()
        seen["chunking"] += (workload.prompt_tokens > budget).any()
        seen["rejection"] += (result.status == Status.REJECTED.value).any()
        for kind, engines in (
            ("ahead", [e.async_scheduling for e in cluster.engines]),
            ("speculation", [e.verified_tokens > 1 for e in cluster.engines]),
            ("both", [e.async_scheduling and e.verified_tokens > 1 for e in cluster.engines]),
        ):
            of_kind = np.array([engines[worker.engine] for worker in cluster.workers])
            seen[kind] += (of_kind & (result.counters["output_tokens"] > 0)).any()
            seen[f"{kind}, preemption"] += (of_kind & (result.counters["preemptions"] > 0)).any()

    count()
    kinds = ("preemption", "prefix hit", "transfer", "local", "chunking", "rejection")
    kinds += ("ahead", "speculation", "both")
    assert all(seen[kind] >= 20 for kind in kinds), seen
    assert all(seen[f"{kind}, preemption"] >= 3 for kind in ("ahead", "speculation", "both")), seen
