# SPDX-License-Identifier: Apache-2.0
"""What a stock Dynamo deployment would export of a simulated one: scrapes off a running simulation.

Owns: the translation, with Dynamo's series, labels and TTFT buckets. Does not own: the simulation,
what is estimated from the scrapes. Nothing of the simulator's own knowledge (queue ages, work in
seconds) is in them: a detector that is judged on them sees what it would see of a stock deployment.
"""

from __future__ import annotations

import numpy as np

from controller.estimation.exposition import Labels
from controller.estimation.roster import Role, RoleSource, Roster, Worker
from controller.estimation.scrapes import Histogram, Scrape, Value
from controller.estimation.signals import Signal
from controller.simulation.cluster import Simulation

FIRST_ID = 0x1179_42D4_E88C_0000
TTFT_BOUNDS = (0.001, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1.0, 2.2, 4.7, 10.0,
               22.0, 48.0, 100.0, 220.0, 480.0, float("inf"))  # fmt: skip
"""Dynamo's default: 18 from 1 ms to 480 s, two significant digits."""


def roster(sim: Simulation) -> Roster:
    """The simulated workers as discovery shows them."""
    decodes = sim.observe().decodes
    workers = {}
    for number, decode in enumerate(decodes):
        role = Role.DECODE if decode else Role.PREFILL
        component = "backend" if decode else "prefill"
        workers[FIRST_ID + number] = Worker(
            FIRST_ID + number, role, RoleSource.CARD, "dynamo", component
        )
    return Roster(workers, complete=True)


def scrapes(sim: Simulation) -> list[Scrape]:
    """One look at the frontend and at every worker, as of the simulation's now."""
    req, seen, now_s = sim.state.req, sim.observe(), sim.now_s
    arrived = req["arrival_s"] < now_s
    prefilled = arrived & ((req["prefilled_s"] >= 0) | (req["first_s"] >= 0))
    first = req["first_s"]
    ttft_s = (first - req["arrival_s"])[arrived & (first >= 0)]
    frontend: dict[Signal, dict[Labels, Value]] = {
        Signal.STARTED: {(): float(arrived.sum())},
        Signal.ENDED: {(): float(seen.requests["served"])},
        Signal.ACTIVE: {(): float(arrived.sum() - seen.requests["served"])},
        Signal.QUEUED: {(("phase", "prefill"),): float(arrived.sum() - prefilled.sum())},
        Signal.TTFT: {(): _histogram(ttft_s)},
    }
    found = [Scrape("frontend", now_s, frontend)]
    for number, decode in enumerate(seen.decodes):
        found.append(_worker(sim, number, bool(decode), arrived, prefilled, seen))
    return found


def _worker(sim, number, decode, arrived, prefilled, seen):  # type: ignore[no-untyped-def]
    req = sim.state.req
    if decode:
        mine = arrived & prefilled & (req["decode_worker"] == number)
        done = mine & (req["finish_s"] >= 0)
        spent_s = req["finish_s"] - req["prefilled_s"]
        waiting = float(seen.waiting[number] + seen.pulling[number])
    else:
        mine = arrived & (req["sent_s"] >= 0) & (req["prefill_worker"] == number)
        done = mine & prefilled
        spent_s = req["prefilled_s"] - req["sent_s"]
        waiting = float(seen.waiting[number])
    name = f"{FIRST_ID + number:x}"
    labels: Labels = (("dynamo_endpoint", "generate"), ("worker_id", name))
    blocks = float(seen.num_blocks[number])
    series: dict[Signal, dict[Labels, Value]] = {
        Signal.WORKER_REQUESTS: {labels: float(mine.sum())},
        Signal.WORKER_ACTIVE: {labels: float(mine.sum() - done.sum())},
        Signal.WORKER_DURATION: {
            labels: Histogram((), (), float(spent_s[done].sum()), float(done.sum()))
        },
        Signal.WAITING: {(): waiting},
        Signal.KV_USAGE: {(): 1.0 - float(seen.free_blocks[number]) / blocks},
    }
    return Scrape(f"worker-{number}", sim.now_s, series)


def _histogram(values_s) -> Histogram:  # type: ignore[no-untyped-def]
    counts = np.searchsorted(np.sort(values_s), TTFT_BOUNDS, side="right").astype(float)
    return Histogram(TTFT_BOUNDS, tuple(counts), float(values_s.sum()), float(len(values_s)))
