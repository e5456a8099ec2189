# SPDX-License-Identifier: Apache-2.0
"""One sequence of arrivals: the live router's classes decide and order as the simulator does.

The reference runs the engines step by step; here its router is the live one: PLACEMENTS' rules on
ClusterViews, PrefillQueues with its tickets, DecodeState's columns. The fast simulator must send
the same requests to the same workers at the same times.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from cluster_kit import tables, workloads
from cluster_reference import Reference
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reference_rules import ordering_of
from test_cluster_exactness import TOLERANCE_S

from controller.engine import EngineSpec
from controller.routing.estimates import prefill_due_s
from controller.routing.inflight import InFlightBound
from controller.routing.kernels.draws import decision_draw
from controller.routing.kernels.orderings import ALGORITHM_2
from controller.routing.registry import PLACEMENTS
from controller.runtime.router.queues import PrefillQueues, QueueOptions, TooLateError
from controller.runtime.router.tickets import Again, Ticket
from controller.simulation.cluster.simulate import simulate
from controller.simulation.cluster.spec import SimOptions, Status, uniform_cluster
from controller.types import ClusterView, DecodePool, Place, PrefillTask, RoutingParams, Slo

pytestmark = [pytest.mark.unit, pytest.mark.timeout(900)]


class Draws:
    """The simulator's random bits, decision by decision."""

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, 0

    def getrandbits(self, _bits: int) -> int:
        self._count += 1
        return int(decision_draw(self._seed, self._count - 1))


class Live(Reference):
    """The reference with the live router in the middle."""

    def __init__(self, workload, cluster, chosen) -> None:
        super().__init__(workload, cluster, chosen)
        self.costs, engine = self.workers[0].costs, self.workers[0].spec
        self.queues = PrefillQueues(
            InFlightBound(engine.max_num_batched_tokens, chosen.in_flight_steps),
            chosen.params.window_s,
            ordering_of(chosen),
            QueueOptions(chosen.reject, late_binding=False, revise=chosen.placement == "batch"),
            engine.block_size,
        )
        self.ids = tuple(worker.number for worker in self.prefill)
        self.queues.sync(self.ids)
        knobs = replace(chosen.params.toll, local_chunk_tokens=chosen.local_chunk_tokens)
        params = replace(chosen.params, toll=knobs)
        draws: Random = Draws(chosen.seed)  # type: ignore[assignment]
        self.rule = PLACEMENTS[chosen.placement](self.costs, chosen.slo, params, draws)
        self.tickets: dict[int, Ticket] = {}
        self.first_due_s: dict[int, float] = {}

    def view(self, r: int, decode, fresh: bool, now_s: float) -> ClusterView:
        columns = {
            "worker_ids": tuple(d.number for d in self.decode),
            "itl_window_s": [self.itl_window_s(d, now_s) for d in self.decode],
            "queue_s": [max(0.0, d.local_until_s - now_s) for d in self.decode],
            "local_prefills": [len(d.locals) for d in self.decode],
            "batch": [d.batch for d in self.decode],
            "context_tokens": [d.context for d in self.decode],
            "held_tokens": [d.booked + d.made for d in self.decode],
            "kv_tokens": [d.spec.num_blocks * d.spec.block_size for d in self.decode],
            "budget_tokens": [d.spec.max_num_batched_tokens for d in self.decode],
            "chunked": [True for _ in self.decode],
            "cached_tokens": [self.hits(d, r) for d in self.decode],
        }
        ids = columns.pop("worker_ids")
        pool = DecodePool(ids, **{name: np.array(values) for name, values in columns.items()})
        cached = {p.number: self.hits(p, r) for p in self.prefill}
        bound = self.decode.index(decode)
        return ClusterView(now_s, self.queues.view(self.ids, cached, now_s), pool, bound, fresh)

    def place(self, r: int, decode, fresh: bool, now_s: float):
        prompt = int(self.w.prompt_tokens[r])
        history = self.hits(decode, r)
        urgency = int(self.w.priority[r])
        came_s = self.out[r].arrival_s
        task = PrefillTask(str(r), came_s, history, prompt - history, urgency=urgency)
        view = self.view(r, decode, fresh, now_s)
        made = self.rule.place(task, view)
        if made.place is Place.REMOTE:
            worker = self.workers[made.worker_id]
            ordering = self.queues.ordering
            self.due_s = prefill_due_s(self.costs, task, view, ordering, self.options.slo)
            return worker, decode, history, self.hits(worker, r)
        if made.decode_id is not None:
            decode = self.workers[made.decode_id]
            history = self.hits(decode, r)
        cap = self.options.local_chunk_tokens
        self.schedule = made.chunks or (cap,) * bool(cap)
        if cap:
            self.schedule = tuple(min(cap, chunk) for chunk in self.schedule)
        self.local_s = made.local_s
        return None, decode, history, 0

    def revise(self, now_s: float) -> None:
        """The queues have done it."""

    def again(self, r: int, now_s: float) -> Again | None:
        """What the core does when a prefill that waits is asked once more."""
        self.unhold(r)
        decode = self.workers[self.out[r].decode_worker]
        due_s = self.due_s
        choice, decode, history, cached = self.place(r, decode, False, now_s)
        if choice is None:
            self.send_local(r, decode, history, now_s)
            return None
        self.hold(r)
        ask = self.asks[r]
        prompt = int(self.w.prompt_tokens[r])
        if self.queues.ordering.kind == ALGORITHM_2:
            self.due_s = self.first_due_s[r]
        ask.update(
            uncached=prompt - min(cached, prompt - 1),
            predicted=self.own_s(choice, r, cached),
            history=history,
        )
        self.out[r].prefill_worker = choice.number
        wants = Again(choice.number, ask["uncached"], ask["predicted"], self.due_s)
        self.due_s = due_s
        return wants

    def wait(self, choice, r, now_s, kept=None) -> None:
        """Instead of the reference's own queue."""
        self.first_due_s[r], self.now_s = self.due_s, now_s
        ask = self.asks[r]
        ticket = self.queues.enqueue(
            choice.number,
            ask["uncached"],
            ask["predicted"],
            now_s,
            arrival_s=self.out[r].arrival_s,
            due_s=self.due_s,
            urgency=int(self.w.priority[r]),
            again=lambda: self.again(r, self.now_s),
        )
        self.tickets[r] = ticket

    def pump(self, worker, now_s: float) -> None:
        """Whom the queues have granted meanwhile, in that order, and whom they have refused."""
        for each in self.prefill:
            self.granted(each, now_s)
        for r, ticket in list(self.tickets.items()):
            error = ticket.granted.exception() if ticket.granted.done() else None
            if error is not None:
                self.queues._forget(self.queues._lanes[ticket.worker_id], ticket, now_s)
                del self.tickets[r]
            if isinstance(error, TooLateError):
                self.unhold(r)
                self.end(r, "rejected", now_s)

    def granted(self, worker, now_s: float) -> None:
        """Send what may be sent, in the order in which it may."""
        lane = self.queues._lanes[worker.number]
        rows, row = [], int(self.queues._waiting.lanes[lane.number]["fly_head"])
        while row >= 0:
            rows.append(row)
            row = int(self.queues._waiting.tasks[row]["next"])
        requests = {ticket: r for r, ticket in self.tickets.items()}
        for r in [requests[lane.tickets[row]] for row in rows]:
            if r not in worker.flying:
                worker.flying[r] = None
                self.out[r].sent_s = now_s
                self.add(worker, r, "prefill", now_s)

    def prefilled(self, worker, r: int, now_s: float) -> None:
        decode = self.workers[self.out[r].decode_worker]
        lacking = int(self.w.prompt_tokens[r]) - self.asks[r]["history"]
        ttft_s = now_s - self.out[r].arrival_s + decode.costs.kv_transfer_s(lacking)
        self.queues.record_ttft(worker.number, now_s, ttft_s)
        del worker.flying[r]
        self.now_s = now_s
        self.queues.release(self.tickets.pop(r), now_s)
        self.pump(worker, now_s)
        self.add(decode, r, "decode", now_s)


@st.composite
def cases(draw: st.DrawFn):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    engine = EngineSpec(
        block_size=draw(st.sampled_from([2, 4])),
        num_blocks=draw(st.integers(40, 90)),
        max_num_batched_tokens=draw(st.integers(8, 40)),
        max_num_seqs=draw(st.integers(2, 6)),
        kv_lease_s=1e9,
    )
    cluster = uniform_cluster(
        draw(st.integers(1, 3)), draw(st.integers(1, 3)), engine, tables(rng, False)
    )
    ordering = draw(
        st.sampled_from(["hopeless_last", "fifo", "moore_hodgson", "algorithm_2", "shortest"])
    )
    rejecting = draw(st.booleans()) and ordering in ("hopeless_last", "moore_hodgson")
    chosen = SimOptions(
        # Round robin reads no history, so its deadlines are others; its choice is a counter.
        placement=draw(st.sampled_from(sorted(set(PLACEMENTS) - {"round_robin"}))),
        ordering=ordering,
        late_share=draw(st.sampled_from([0.0, 0.3])),
        reject=rejecting,
        slo=Slo(draw(st.sampled_from([5.0, 50.0])), draw(st.sampled_from([9.0, 30.0]))),
        params=RoutingParams(window_s=draw(st.sampled_from([0.05, 10.0]))),
        local_chunk_tokens=draw(st.sampled_from([0, 3])),
        seed=draw(st.integers(0, 1000)),
    )
    return draw(workloads()), cluster, chosen


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases())
def test_live_rules_decide_and_order_as_the_simulated_ones(case):
    workload, cluster, chosen = case

    async def run():
        live = Live(workload, cluster, chosen)
        return live, live.run()

    live, served = asyncio.run(run())
    result = simulate(workload, cluster, chosen)
    for r, want in enumerate(served):
        status = Status(int(result.status[r])).name.lower()
        assert status == ("never_issued" if want.status == "pending" else want.status), r
        if status != "served":
            continue
        place = "local" if result.place[r] else "remote"
        assert (place, result.decode_worker[r]) == (want.place, want.decode_worker), r
        assert result.prefill_worker[r] == want.prefill_worker, r
        assert abs(result.sent_s[r] - want.sent_s) < TOLERANCE_S, r
        assert abs(result.finish_s[r] - want.finish_s) < TOLERANCE_S, r
    assert live.queues.waiting() == live.queues.in_flight() == 0
