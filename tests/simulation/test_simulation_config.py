# SPDX-License-Identifier: Apache-2.0
"""Simulation files as cluster and options, and deployment files read as simulations."""

from __future__ import annotations

import math

import pytest

from controller.config import ConfigError
from controller.costs.tables import EMITTED, VERIFIED
from controller.runtime.resources import Kind, read, read_profile, shipped
from controller.simulation.cluster.events import ClusterEvent, EventKind
from controller.simulation.cluster.spec import SimulationError
from controller.simulation.config import SimulationConfig, parse_simulation
from controller.simulation.configured import cluster_of, options_of

pytestmark = pytest.mark.unit

HEAD = "schema: equilibrium.simulation/1\n"


def parsed(text: str) -> SimulationConfig:
    return parse_simulation(HEAD + text, "test")


def cluster(config: SimulationConfig):
    return cluster_of(config, {name: read_profile(name) for name in config.profiles})


@pytest.mark.parametrize("name", [n for n in shipped(Kind.SIMULATION) if n != "local_vllm_cpu"])
def test_every_shipped_file_can_be_simulated(name):
    config = parse_simulation(read(Kind.SIMULATION, name), name)
    assert len(cluster(config).decode) >= 1
    assert options_of(config).slo.ttft_ms > 0


def test_a_deployment_keeps_its_rule_its_ordering_and_its_engines():
    config = parse_simulation(
        "schema: equilibrium.deployment/1\n"
        "router: {policy: toll, alpha: 0.7, ordering: {rule: earliest_deadline, max_wait_s: 4},\n"
        "  toll: {local_chunk_tokens: 256}}\n"
        "slo: {ttft_ms: 900, tenants: {a: {ttft_ms: 100}}}\n"
        "frontend: {migration_limit: 2}\n"
        "decode: {workers: 3, emulated: {num_blocks: 77, slowdown: 2}}\n",
        "test",
    )
    options, found = options_of(config), cluster(config)
    assert (options.placement, options.params.alpha) == ("toll", 0.7)
    assert (options.ordering, options.max_wait_s) == ("earliest_deadline", 4.0)
    assert (options.local_chunk_tokens, options.migration_limit) == (256, 2)
    assert options.slo.ttft_ms == 900
    assert len(found.decode) == 3 and not found.contention
    assert found.engines[found.decode[0].engine].num_blocks == 77
    fast, slow = (found.costs[pool[0].costs] for pool in (found.prefill, found.decode))
    assert slow.dense_s == pytest.approx(2 * fast.dense_s)


def test_engine_settings_come_from_the_profile_unless_the_file_says_otherwise():
    config = parsed("profile: llama31_70b_fp8_tp4_h100\ndecode: {emulated: {block_size: 32}}\n")
    known = read_profile("llama31_70b_fp8_tp4_h100").engine
    prefill, decode = cluster(config).engines
    assert (prefill.block_size, prefill.num_blocks) == (known.block_size, known.num_gpu_blocks)
    assert decode.num_blocks * 32 == pytest.approx(prefill.num_blocks * known.block_size, abs=32)
    assert prefill.max_num_seqs == known.max_num_seqs
    assert options_of(config).max_wait_s == math.inf


def test_speculation_and_scheduling_ahead_reach_the_engine_and_its_step_times():
    config = parsed(
        "prefill: 1\n"
        "decode: {emulated: {async_scheduling: true,\n"
        "  speculation: {verified_tokens: 4, emitted_tokens: 2.5}}}\n"
    )
    found = cluster(config)
    (plain, decode), tables = found.engines, found.costs[found.decode[0].costs]
    assert (decode.async_scheduling, decode.emission) == (True, (5, 2))
    assert (decode.verified_tokens, tables.options[VERIFIED], tables.options[EMITTED]) == (
        4,
        4,
        2.5,
    )
    assert (plain.async_scheduling, plain.emission) == (False, (1, 1))


def test_speculation_beyond_the_budget_is_refused():
    config = parsed(
        "decode: {emulated: {max_num_batched_tokens: 3,\n"
        "  speculation: {verified_tokens: 4, emitted_tokens: 2}}}\n"
    )
    with pytest.raises(SimulationError, match="verifies 4 tokens, above max_num_batched_tokens 3"):
        cluster(config)


def test_events_number_workers_within_their_pool():
    config = parsed(
        "prefill: 2\ndecode: [{workers: 1}, {workers: 1, present: false}]\n"
        "events:\n"
        "  - {at_s: 5, kind: fail, pool: decode, worker: 0}\n"
        "  - {at_s: 6, kind: join, pool: decode, worker: 1}\n"
        "  - {at_s: 7, kind: drain, pool: prefill, worker: 1}\n"
    )
    found = cluster(config)
    assert found.events == (
        ClusterEvent(5.0, 2, EventKind.FAIL),
        ClusterEvent(6.0, 3, EventKind.JOIN),
        ClusterEvent(7.0, 1, EventKind.DRAIN),
    )
    assert [worker.present for worker in found.decode] == [True, False]


def test_an_event_of_a_worker_that_is_not_there_is_refused():
    config = parsed("events: [{at_s: 5, kind: fail, pool: decode, worker: 1}]\n")
    with pytest.raises(SimulationError, match="names decode worker 1; the file has 1"):
        cluster(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("events: [{at_s: 5, kind: explode, pool: decode, worker: 0}]", "events.0.kind"),
        ("events: [{at_s: -1, kind: fail, pool: decode, worker: 0}]", "events.0.at_s"),
        ("router: {ordering: {rule: fifo, reject: true}}", "reject needs a rule"),
        ("transfer: {mode: magic}", "transfer.mode"),
        ("decode: {workers: 0}", "no decode worker"),
        (
            "decode: {emulated: {speculation: {verified_tokens: 2, emitted_tokens: 3}}}",
            "emitted_tokens 3 is above verified_tokens 2",
        ),
        ("decode: [{workrs: 1}]", "did you mean 'workers'"),
    ],
)
def test_a_wrong_key_is_named(text, expected):
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert expected in str(refused.value) and "\n" not in str(refused.value)
