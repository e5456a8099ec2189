# SPDX-License-Identifier: Apache-2.0
"""The first state of a simulation, from workload, cluster and options.

Owns: filling the arrays. Does not own: their meaning (state.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from controller.costs.tables import pack
from controller.routing.inflight import InFlightBound
from controller.routing.kernels.algorithm_2 import ROOM
from controller.routing.kernels.orderings import ORDERINGS
from controller.simulation.cluster import layout
from controller.simulation.cluster import state as at
from controller.simulation.cluster.clock import NEVER, instant
from controller.simulation.cluster.events import CODES, ClusterEvent
from controller.simulation.cluster.heaps import WIDTH
from controller.simulation.cluster.limits import check_limits, words_of
from controller.simulation.cluster.placement import PLACEMENTS, READ_WINDOWS
from controller.simulation.cluster.prefixes import Segments, segments
from controller.simulation.cluster.room import grow_holdings, grow_references, margin, records
from controller.simulation.cluster.spec import (
    BINDINGS,
    TRANSFERS,
    ClusterSpec,
    SimOptions,
    SimulationError,
)
from controller.simulation.workloads.workload import Workload
from controller.types import RoutingParams

_FIRST_POOL = 1 << 14
_FIRST_LOG = 1 << 16
_FIRST_NEWS = 64
_MOST_FRONT_ROWS = 1 << 12
_MOST_FRONTS = 1 << 22


def build(workload: Workload, cluster: ClusterSpec, options: SimOptions) -> at.State:
    """The state before the first event."""
    check_limits(workload, cluster, options)
    cut = segments(workload)
    _check_blocks(workload, cluster, cut)
    workers = len(cluster.workers)
    wrk, mem = _workers(cluster, options)
    data, bounds = _tables(cluster)
    batches = max(engine.max_num_seqs for engine in cluster.engines) + 1
    s = at.State(
        req=_requests(workload, options),
        wrk=wrk,
        hold=records(layout.HOLDING, 0),
        ref=records(layout.REFERENCE, 0),
        log=records(layout.STEPS, _FIRST_LOG),
        stint=records(layout.STINT, 0),
        orphan=records(layout.ORPHAN, 0),
        event=records(layout.EVENT, 0),
        news=records(layout.NEWS, workers * _FIRST_NEWS),
        ctl=_scalars(workload, cluster, options, cut),
        par=_parameters(options),
        mem=mem,
        due=np.full(workers, NEVER),
        heap=np.zeros(workers, np.int32),
        slot=np.full(workers, -1, np.int32),
        ready=np.zeros(workers, np.int32),
        later_key=np.zeros(len(workload) + 1, np.int64),
        later_row=np.zeros(len(workload) + 1, np.int32),
        own=np.flatnonzero(workload.after < 0).astype(np.int32),
        books=np.zeros((at.BOOKS, workers)),
        seen=np.zeros((at.SEEN, workers), np.int64),
        pool=_pools(cluster),
        scratch=np.zeros(_scratch_size(workload, cluster), np.int64),
        estimate=np.zeros((4, workers)),
        bound=np.full(int(workload.session.max()) + 1, -1, np.int32),
        live=np.zeros(cut.shared + int(workload.stream.max()) + 1, np.int32),
        path_start=cut.start,
        path=cut.path.astype(np.int32),
        bucket=np.full(1, -1, np.int32),
        front=np.full((_front_rows(cut, workers), workers), -1),
        data=data,
        bounds=bounds,
        line=_no_lines(len(cluster.costs), batches),
    )
    grow_holdings(s, _FIRST_POOL + 2 * margin(s))
    grow_references(s, _FIRST_POOL + 2 * margin(s))
    s.put("stint", records(layout.STINT, _FIRST_POOL + 2 * margin(s)))
    s.ctl[at.BATCHES] = batches
    _empty_caches(s)
    set_params(s, options.params)
    add_events(s, cluster.events)
    return s


def add_events(s: at.State, events: Sequence[ClusterEvent]) -> None:
    """Events to come, beside those that are left."""
    left = s.event[s.ctl[at.NEXT_EVENT] :]
    new = records(layout.EVENT, len(events))
    for row, event in zip(new, events, strict=True):
        row.at, row.worker, row.kind = instant(event.at_s), event.worker, CODES[event.kind]
    both = np.concatenate([left, new])
    order = np.argsort(both["at"], kind="stable")
    s.put("event", both[order].view(np.recarray))
    s.ctl[at.NEXT_EVENT] = 0
    s.ctl[at.EVENT_AT] = s.event[0].at if len(s.event) else NEVER


def _requests(workload: Workload, options: SimOptions) -> Any:
    req = records(layout.REQUEST, len(workload))
    req["arrival_s"] = workload.arrival_s
    req["think_s"] = workload.think_s
    req["error"] = _errors(len(workload), options)
    req["prompt"] = workload.prompt_tokens
    req["output"] = workload.output_tokens
    req["urgency"] = workload.priority
    req["priority"] = -workload.priority
    req["session"] = workload.session
    req["stream"] = workload.stream
    req["head"] = workload.heads
    req["follower"] = workload.followers
    for name in (
        "prefill_worker",
        "decode_worker",
        "place",
        "reason",
        "refs",
        "pin_refs",
        "sampled",
        "stints",
    ):
        req[name] = -1
    for name in (
        "sent_s",
        "started_s",
        "prefilled_s",
        "pulled_s",
        "first_s",
        "finish_s",
        "stint_s",
    ):
        req[name] = -1.0
    return req


def _errors(count: int, options: SimOptions) -> Any:
    if options.cost_error == 0:
        return options.cost_bias
    rng = np.random.default_rng([options.seed, 1])
    return options.cost_bias * np.exp(rng.normal(0.0, options.cost_error, count))


def _workers(cluster: ClusterSpec, options: SimOptions) -> tuple[Any, Any]:
    wrk = records(layout.WORKER, len(cluster.workers))
    words = 0
    for i, worker in enumerate(cluster.workers):
        spec = cluster.engines[worker.engine]
        row = wrk[i]
        row.role = at.PREFILLS if i < len(cluster.prefill) else at.DECODES
        row.life = at.LIVE if worker.present else at.DEAD
        row.cold_start_s, row.lease_s = spec.cold_start_s, spec.kv_lease_s
        row.table = worker.costs
        row.block_size, row.num_blocks = spec.block_size, spec.num_blocks
        row.max_tokens, row.max_seqs = spec.max_num_batched_tokens, spec.max_num_seqs
        row.prefix_cache, row.charge_prefill = spec.prefix_cache, spec.charge_prefill
        row.watermark, row.prefill_first = spec.watermark_blocks, spec.prefill_first
        row.reserve_prompt, row.lead = spec.reserve_prompt, spec.async_scheduling
        row.verified = spec.verified_tokens
        row.emit_num, row.emit_den = spec.emission
        bound = InFlightBound(spec.max_num_batched_tokens, options.in_flight_steps)
        row.in_flight_tokens = bound.tokens
        row.ends, row.residues = words, words + WIDTH * (spec.max_num_seqs + 1)
        words += words_of(spec)
    for name in wrk.dtype.names:
        if name.endswith(("_head", "_tail")):
            wrk[name] = -1
    return wrk, np.zeros(words, np.int64)


def _tables(cluster: ClusterSpec) -> tuple[Any, Any]:
    packed = [pack(tables) for tables in cluster.costs]
    offsets = np.cumsum([0] + [len(data) for data, _ in packed[:-1]])
    data = np.concatenate([data for data, _ in packed])
    return data, np.stack([bounds + o for (_, bounds), o in zip(packed, offsets, strict=True)])


def _no_lines(tables: int, batches: int) -> Any:
    line = np.zeros((tables * batches, 4))
    line[:, 2], line[:, 3] = np.inf, -np.inf
    return line


def _scalars(workload: Workload, cluster: ClusterSpec, options: SimOptions, cut: Segments) -> Any:
    ctl = np.zeros(at.CTL, np.int64)
    rule = PLACEMENTS[options.placement]
    ctl[at.HOLD_FREE] = ctl[at.REF_FREE] = ctl[at.ORPHAN_FREE] = -1
    ctl[at.PREFILL_POOL] = sum(worker.present for worker in cluster.prefill)
    ctl[at.DECODE_POOL] = sum(worker.present for worker in cluster.decode)
    ctl[at.MIGRATION_LIMIT] = options.migration_limit
    ctl[at.DELAY], ctl[at.NEWS_ROOM] = instant(options.report_delay_s), _FIRST_NEWS
    ctl[at.HISTORY_READ] = TRANSFERS[options.transfer]
    ctl[at.SHARED_SEGMENTS] = cut.shared
    ctl[at.BLOCK_TOKENS] = workload.block_tokens
    ctl[at.PLACEMENT] = rule
    ctl[at.BINDING] = BINDINGS[options.binding]
    ctl[at.ORDERING] = ORDERINGS[options.ordering]
    ctl[at.SEED] = options.seed
    ctl[at.KEEP_LOG] = options.gaps or rule in READ_WINDOWS
    ctl[at.CONTENTION] = cluster.contention
    ctl[at.LOCAL_CHUNK] = options.local_chunk_tokens
    ctl[at.WINDOW] = options.ordering_window
    ctl[at.REJECT] = options.reject
    ctl[at.CAP] = options.passed_cap
    return ctl


def _parameters(options: SimOptions) -> Any:
    par = np.zeros(at.PAR)
    par[at.TTFT_LIMIT_S] = options.slo.ttft_ms / 1e3
    par[at.ITL_LIMIT_S] = options.slo.itl_ms / 1e3
    par[at.REPORT_DELAY_S] = options.report_delay_s
    par[at.LATE_SHARE], par[at.MAX_WAIT_S] = options.late_share, options.max_wait_s
    return par


def set_params(s: at.State, params: RoutingParams) -> None:
    """The router's parameters from now on."""
    s.par[at.ALPHA], s.par[at.BETA], s.par[at.WINDOW_S] = params.alpha, params.beta, params.window_s
    s.par[at.COST_CV], s.par[at.GUARD] = params.toll.expected_error, params.toll.itl_guard
    s.par[at.LEAST_CHANCE] = params.toll.least_chance


def _pools(cluster: ClusterSpec) -> Any:
    pool = np.zeros((2, len(cluster.workers)), np.int32)
    present = np.array([worker.present for worker in cluster.workers])
    for side, low, high in ((0, 0, len(cluster.prefill)), (1, len(cluster.prefill), len(present))):
        live = low + np.flatnonzero(present[low:high])
        pool[side, : len(live)] = live
    return pool


def _scratch_size(workload: Workload, cluster: ClusterSpec) -> int:
    """For pieces of a prompt (prefix.find) and for one number a worker."""
    smallest = min(engine.block_size for engine in cluster.engines)
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    return max(3 * (longest // smallest + 2), len(cluster.workers), ROOM)


def _front_rows(cut: Segments, workers: int) -> int:
    """A power of two: one row a shared segment, while that is not much memory."""
    most = max(1, min(_MOST_FRONT_ROWS, _MOST_FRONTS // workers)).bit_length() - 1
    return 1 << min(most, max(0, cut.shared - 1).bit_length())


def _check_blocks(workload: Workload, cluster: ClusterSpec, cut: Segments) -> None:
    for engine in cluster.engines:
        if cut.shared and workload.block_tokens % engine.block_size:
            raise SimulationError(
                f"{workload.name}: engine blocks of {engine.block_size} tokens do not divide the "
                f"workload's blocks of {workload.block_tokens}"
            )


def _empty_caches(s: at.State) -> None:
    """All blocks of every worker free, as one run that nobody can find."""
    for w in range(len(s.wrk)):
        h = int(s.ctl[at.HOLD_FREE])
        s.ctl[at.HOLD_FREE] = s.hold[h].next
        s.ctl[at.HOLDS_LEFT] -= 1
        row = s.hold[h]
        row.segment, row.worker, row.low, row.high = -1, w, 0, s.wrk[w].num_blocks
        row.users, row.prev, row.next, row.chain, row.rest = 0, -1, -1, -1, -1
        s.wrk[w].free = s.wrk[w].num_blocks
        s.wrk[w].lru_head = s.wrk[w].lru_tail = h
