# SPDX-License-Identifier: Apache-2.0
"""A simulation file and the profiles it names, as the values that the simulator takes.

Owns: which engine setting comes from where, and what is assumed where nobody says. Does not own:
the file (config.py), reading profiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from controller.config import EmulatedConfig
from controller.costs.profile import Profile
from controller.costs.tables import (
    BANDWIDTH_BYTES_S,
    EMITTED,
    LATENCY_S,
    VERIFIED,
    StepTables,
    scaled,
)
from controller.engine.values import EngineSpec
from controller.simulation.cluster.events import ClusterEvent
from controller.simulation.cluster.spec import ClusterSpec, SimOptions, SimulationError, Worker
from controller.simulation.config import (
    EventConfig,
    SimulatedEngine,
    SimulationConfig,
    TransferConfig,
)

_ASSUMED = EmulatedConfig()
ASSUMED_KV_TOKENS = _ASSUMED.block_size * _ASSUMED.num_blocks
"""KV capacity where neither file nor profile states one: that of an emulated worker."""


def cluster_of(config: SimulationConfig, profiles: Mapping[str, Profile]) -> ClusterSpec:
    """The cluster; `profiles` has every name of `config.profiles`. Raises SimulationError."""
    engines: list[EngineSpec] = []
    costs: list[StepTables] = []
    pools: list[tuple[Worker, ...]] = []
    for role, groups in (("prefill", config.prefill), ("decode", config.decode)):
        workers: list[Worker] = []
        for group in groups:
            profile = profiles[group.emulated.profile or config.profile]
            costs.append(_tables(group.emulated, profile, config.transfer))
            engines.append(_engine(group.emulated, profile, role, costs[-1]))
            worker = Worker(len(engines) - 1, len(costs) - 1, group.present)
            workers += [worker] * group.workers
        pools.append(tuple(workers))
    return ClusterSpec(
        tuple(engines),
        tuple(costs),
        pools[0],
        pools[1],
        contention=config.transfer.contention,
        events=tuple(_event(event, len(pools[0]), len(pools[1])) for event in config.events),
    )


def _event(event: EventConfig, prefill: int, decode: int) -> ClusterEvent:
    first, workers = (0, prefill) if event.pool == "prefill" else (prefill, decode)
    if event.worker >= workers:
        raise SimulationError(
            f"events: {event.kind.value} at {event.at_s:g} s names {event.pool} worker "
            f"{event.worker}; the file has {workers}, numbered from 0"
        )
    return ClusterEvent(event.at_s, first + event.worker, event.kind)


def options_of(config: SimulationConfig) -> SimOptions:
    """The router's rules, and what it does not know."""
    router, order = config.router, config.router.ordering
    return SimOptions(
        placement=router.policy,
        ordering=order.rule,
        ordering_window=order.window,
        late_share=order.late_share,
        max_wait_s=math.inf if order.max_wait_s is None else order.max_wait_s,
        passed_cap=order.passed_cap,
        reject=order.reject,
        local_chunk_tokens=router.toll.local_chunk_tokens,
        transfer=config.transfer.mode,
        migration_limit=router.migration_limit,
        binding=router.binding,
        slo=config.slo.value(),
        params=router.params(),
        in_flight_steps=router.in_flight_steps,
        seed=router.seed,
        report_delay_s=router.report_delay_s,
        cost_error=router.cost_error,
        cost_bias=router.cost_bias,
        until_s=math.inf if config.until_s is None else config.until_s,
    )


def assumptions(config: SimulationConfig, profiles: Mapping[str, Profile]) -> list[str]:
    """What nobody stated, one line each."""
    unknown = dict.fromkeys(
        name
        for group in (*config.prefill, *config.decode)
        if group.emulated.num_blocks is None
        and profiles[name := group.emulated.profile or config.profile].engine.num_gpu_blocks is None
    )
    return [
        f"profile {name} states no KV capacity: {ASSUMED_KV_TOKENS:,} tokens a worker are assumed "
        "(emulated.num_blocks)"
        for name in unknown
    ]


def _engine(engine: SimulatedEngine, profile: Profile, role: str, tables: StepTables) -> EngineSpec:
    known = profile.engine
    block_size = engine.block_size or known.block_size
    capacity = ASSUMED_KV_TOKENS
    if known.num_gpu_blocks is not None:
        capacity = known.num_gpu_blocks * known.block_size
    num_blocks = engine.num_blocks or max(1, capacity // block_size)
    if engine.watermark_blocks >= num_blocks:
        raise SimulationError(
            f"{role}: watermark_blocks {engine.watermark_blocks} is not below num_blocks "
            f"{num_blocks}"
        )
    budget = engine.max_num_batched_tokens or known.max_num_batched_tokens
    verified = int(tables.options[VERIFIED])
    if verified > budget:
        raise SimulationError(
            f"{role}: speculation verifies {verified} tokens, above max_num_batched_tokens {budget}"
        )
    return EngineSpec(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=engine.max_num_seqs or known.max_num_seqs,
        prefix_cache=engine.prefix_cache,
        kv_lease_s=engine.kv_lease_s,
        charge_prefill=engine.charge_local_prefill or role == "prefill",
        watermark_blocks=engine.watermark_blocks,
        cold_start_s=engine.cold_start_s,
        prefill_first=engine.prefill_first,
        reserve_prompt=engine.reserve_prompt,
        async_scheduling=engine.async_scheduling,
        verified_tokens=verified,
        emitted_tokens=float(tables.options[EMITTED]),
    )


def _tables(engine: SimulatedEngine, profile: Profile, link: TransferConfig) -> StepTables:
    tables = profile.tables()
    if engine.slowdown != 1.0:
        tables = scaled(tables, engine.slowdown)
    transfer = np.array(tables.transfer)
    if link.latency_ms is not None:
        transfer[LATENCY_S] = link.latency_ms / 1e3
    if link.bandwidth_gb_s is not None:
        transfer[BANDWIDTH_BYTES_S] = link.bandwidth_gb_s * 1e9
    options = np.array(tables.options)
    if engine.speculation is not None:
        options[VERIFIED] = engine.speculation.verified_tokens
        options[EMITTED] = engine.speculation.emitted_tokens
    return tables._replace(transfer=transfer, options=options)
