# SPDX-License-Identifier: Apache-2.0
"""What one routing decision costs: view, placement rule and queue, through the live classes.

    python experiments/bench_decision.py            # every rule, 64 and 1,024 workers
    python experiments/bench_decision.py --quick    # the default rule and ordering only
    python experiments/bench_decision.py --rule toll --ordering hopeless_last

A decision is everything that the router does for a prefill between its prefix hits and the send:
following the live set, the view of both pools, the rule, the deadline, the queue, and afterwards
the release of a finished prefill with whatever is sent next. There are as many decode workers as
prefill workers, each of the former has decodes running; 1, 64 or 1,024 tasks wait at all times, in
all, evenly spread. Ten decode workers report a forward pass between two decisions (not timed).
Prompts are log-normal around 2,000 tokens, hits on one prefill worker in eight. Not in it: Dynamo's
prefix lookup (36 us by its own measure), reading the request, sending it, the garbage collector.

Times are processor time of the deciding thread: on an idle machine that is the time by the clock,
on a busy one the clock tells how long others ran. Both are printed, p50 and p99 in microseconds.
The last line is JSON: {"p99_us": {"64x1": ..., ...}} of `toll` with `hopeless_last`, the same by
the clock, all rules and orderings, and `python_us`, the time of sum(range(1000)): a yardstick for
comparing machines, and the same machine idle and busy.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from controller.errors import UserError
from controller.routing.estimates import prefill_due_s
from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.routing.registry import PLACEMENTS, decide
from controller.runtime.resources import read_profile
from controller.runtime.router.breaker import Breaker
from controller.runtime.router.decode_state import DecodeState, EngineFacts, PassReport
from controller.runtime.router.queues import PrefillQueues, Ticket
from controller.types import ClusterView, Place, PrefillTask, RoutingParams, Slo

WORKERS = (64, 1024)
WAITING = (1, 64, 1024)
DEFAULT = ("toll", "hopeless_last")
SLO = Slo(1500.0, 60.0)
REPORTS = 10
BUDGET = 8192


@dataclass
class Site:
    """A router's state, and tasks to give it."""

    rule: str
    ordering: str
    workers: int
    waiting: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.costs = read_profile("dense70b_tp4").cost_model()
        self.rng = Random(self.seed)
        self.placement = PLACEMENTS[self.rule](self.costs, SLO, RoutingParams(), self.rng)
        self.queues = PrefillQueues(
            InFlightBound(BUDGET), 10.0, Ordering(ORDERINGS[self.ordering], 3)
        )
        self.breaker = Breaker()
        self.decode = DecodeState(10.0, followed=True)
        self.live = list(range(1, self.workers + 1))
        self.decodes = list(range(100_001, 100_001 + self.workers))
        self.decode.sync(self.decodes)
        for worker_id in self.decodes:
            self.decode.equip(worker_id, EngineFacts(1_000_000, 2048, True))
            self.report(worker_id, 0.0)
        self.now_s = 0.0
        self.queues.sync(self.live)
        self.held: list[Ticket] = []
        self.count = 0

    def report(self, worker_id: int, now_s: float) -> None:
        """A forward pass of a decode worker."""
        batch = self.rng.randrange(8, 33)
        self.decode.observe(PassReport(worker_id, 0.02, batch, batch * 2000), now_s)

    def fill(self) -> None:
        """Keep every worker busy, and the wanted number of tasks waiting behind them."""
        for worker_id in self.live:
            self.held.append(self.queues.enqueue(worker_id, 2 * BUDGET, 1.0, self.now_s))
        for i in range(self.waiting):
            due_s = self.now_s + self.rng.uniform(0.5, 3.0)
            worker_id = self.live[i % self.workers]
            tokens = self.rng.randrange(500, 4000)
            self.held.append(
                self.queues.enqueue(worker_id, tokens, tokens * 5e-5, self.now_s, due_s=due_s)
            )

    def task(self) -> tuple[PrefillTask, dict[int, int]]:
        """The next request, and its prefix hits."""
        prompt = max(16, int(self.rng.lognormvariate(7.6, 0.8)))
        self.count += 1
        hits = {w: prompt // 2 for w in self.rng.sample(self.live, self.workers // 8)}
        return PrefillTask(f"r{self.count}", self.now_s, 0, prompt, slo=SLO), hits

    def decision(self, task: PrefillTask, hits: dict[int, int], bound: int) -> None:
        """The timed part."""
        now_s = self.now_s
        live = tuple(self.live)
        self.queues.sync(live)
        ids = self.breaker.usable(live, now_s)
        prefill = self.queues.view(ids, hits, now_s)
        view = ClusterView(now_s, prefill, self.decode.view(now_s), bound, fresh=True)
        made = decide(self.placement, task, view)
        if made.place is Place.LOCAL:
            self.decode.local_sent(self.decodes[bound], task.request_id, 0.01, now_s)
            return
        ticket = self.queues.enqueue(
            made.worker_id or 0,
            task.prompt_tokens,
            self.costs.prefill_s(0, task.prompt_tokens),
            now_s,
            arrival_s=task.arrival_s,
            due_s=prefill_due_s(self.costs, task, view, self.queues.ordering, SLO),
        )
        self.held.append(ticket)

    def finish_one(self) -> None:
        """The longest running prefill ends; timed too: it sends the next one."""
        for i, ticket in enumerate(self.held):
            if ticket.granted.done():
                self.queues.release(self.held.pop(i), self.now_s)
                return


def measure(site: Site, count: int) -> tuple[list[float], list[float]]:
    """Microseconds of each of `count` decisions, by the processor's and by the wall clock."""
    site.fill()
    took_us, wall_us = [], []
    gc.collect()
    gc.disable()
    for i in range(count + 50):
        site.now_s += 0.002
        for _ in range(REPORTS):
            site.report(site.rng.choice(site.decodes), site.now_s)
        task, hits = site.task()
        bound = site.rng.randrange(site.workers)
        full = site.queues.waiting() >= site.waiting
        wall, start = time.perf_counter(), time.thread_time()
        site.decision(task, hits, bound)
        if full:
            site.finish_one()
        took, walled = time.thread_time() - start, time.perf_counter() - wall
        site.decode.local_done(task.request_id)
        while site.queues.waiting() > site.waiting:
            site.finish_one()
        if i >= 50:
            took_us.append(took * 1e6)
            wall_us.append(walled * 1e6)
    gc.enable()
    return took_us, wall_us


def yardstick_us() -> float:
    """Processor time of sum(range(1000)) in Python, median: how fast this machine is just now."""
    took_us = []
    for _ in range(2000):
        start = time.thread_time()
        sum(range(1000))
        took_us.append((time.thread_time() - start) * 1e6)
    return float(np.median(took_us))


def cases(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Rule and ordering of each measurement."""
    if args.rule or args.ordering:
        return [(args.rule or DEFAULT[0], args.ordering or DEFAULT[1])]
    if args.quick:
        return [DEFAULT]
    others = [(rule, DEFAULT[1]) for rule in PLACEMENTS if rule != DEFAULT[0]]
    return [DEFAULT, *others, *[(DEFAULT[0], each) for each in ORDERINGS if each != DEFAULT[1]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the default rule and ordering only")
    parser.add_argument("--rule", choices=list(PLACEMENTS))
    parser.add_argument("--ordering", choices=list(ORDERINGS))
    parser.add_argument("--decisions", type=int, default=2000, help="a measurement (2000)")
    args = parser.parse_args()
    if args.decisions < 100:
        raise UserError("--decisions must be at least 100: p99 of fewer says nothing")
    p99_us: dict[str, dict[str, float]] = {}
    wall_us: dict[str, dict[str, float]] = {}
    for rule, ordering in cases(args):
        name = f"{rule}+{ordering}"
        for workers in WORKERS:
            for waiting in WAITING:
                site = Site(rule, ordering, workers, waiting)
                took, walled = measured(site, args.decisions)
                p50, p99 = np.percentile(took, [50, 99])
                wall_p50, wall_p99 = np.percentile(walled, [50, 99])
                cell = f"{workers}x{waiting}"
                p99_us.setdefault(name, {})[cell] = round(float(p99), 1)
                wall_us.setdefault(name, {})[cell] = round(float(wall_p99), 1)
                print(
                    f"{rule:13} {ordering:17} {workers:5} workers {waiting:5} waiting: "
                    f"p50 {p50:6.1f} us, p99 {p99:6.1f} us; "
                    f"by the clock {wall_p50:6.1f} and {wall_p99:6.1f} us",
                    flush=True,
                )
    first = next(iter(p99_us))
    summary = {
        "p99_us": p99_us[first],
        "wall_p99_us": wall_us[first],
        "python_us": round(yardstick_us(), 1),
        "by_rule": p99_us,
    }
    print(json.dumps(summary))
    return 0


def measured(site: Site, count: int) -> tuple[list[float], list[float]]:
    """`measure` on a loop, which tickets need."""

    async def run() -> tuple[list[float], list[float]]:
        return measure(site, count)

    return asyncio.run(run())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"bench_decision: {error}", file=sys.stderr)
        sys.exit(2)
