# SPDX-License-Identifier: Apache-2.0
"""The reference's router queue and prices, over the live router's own arrays.

The queue is `WaitingPrefills`, what the live router uses: so a case in which simulator and
reference agree is also one in which the simulated and the live queue agree.
"""

from __future__ import annotations

import math

import numpy as np

from controller.routing.kernels import deflect
from controller.routing.kernels.dynamo import (
    EFF_ISL_RATIO,
    EFF_ISL_THRESHOLD,
    cheapest,
    kv_cost,
    stays_local,
)
from controller.routing.kernels.estimates import prefill_beside_s
from controller.routing.kernels.forecast import chance
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.routing.kernels.toll import bearable_chunk, toll
from controller.routing.waiting import WaitingPrefills

_KEPT = ("arrival_s", "urgency", "queued_s", "joined_s", "asked_s", "postponed")


def ordering_of(options) -> Ordering:
    return Ordering(
        ORDERINGS[options.ordering],
        options.ordering_window,
        options.late_share,
        options.max_wait_s,
        options.passed_cap,
    )


class RouterQueue:
    """Rows of the workload that wait for one worker."""

    def __init__(self, options) -> None:
        self.waiting = WaitingPrefills(ordering_of(options))
        self.lane = self.waiting.open_lane()
        self.tasks: dict[int, int] = {}  # row of the workload -> task
        self.sent: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def __iter__(self):
        return iter(self.tasks)

    def join(self, r, arrival_s, uncached, urgency, predicted_s, due_s, now_s) -> None:
        task = self.waiting.new_task(arrival_s, uncached, urgency)
        self.tasks[r] = task
        self.waiting.join(self.lane, task, predicted_s, due_s, now_s)

    def ask_next(self, now_s):
        """(who chooses again, what it keeps), out of the queue for that; None: nobody."""
        task = self.waiting.ask_next(self.lane, now_s)
        if task < 0:
            return None
        r = next(r for r, t in self.tasks.items() if t == task)
        kept = {name: self.waiting.tasks[task][name] for name in _KEPT}
        self.drop(r, now_s)
        return r, kept

    def take(self, r, kept, uncached, predicted_s, due_s, now_s) -> None:
        """One that has chosen again, with its age and how often it was passed over."""
        task = self.tasks[r] = self.waiting.new_task(0.0, uncached)
        for name, value in kept.items():
            self.waiting.tasks[task][name] = value
        self.waiting.set_due(task, due_s)
        self.waiting.move(self.lane, task, uncached, predicted_s, now_s)

    def next(self, now_s, most_tokens):
        """(row to send next, what `send` wants); None: nobody may be sent."""
        task, ordered = self.waiting.look(self.lane, now_s, most_tokens)
        if task < 0:
            return None
        return next(r for r, t in self.tasks.items() if t == task), ordered

    def send(self, r, ordered, now_s) -> None:
        self.sent[r] = self.tasks.pop(r)
        self.waiting.send(self.sent[r], ordered, now_s)

    def land(self, r, now_s) -> None:
        self.waiting.forget(self.sent.pop(r), now_s)

    def late(self) -> list[int]:
        """Rows that cannot be in time any more, oldest first."""
        rows, found = {t: r for r, t in self.tasks.items()}, []
        task = self.waiting.late_head(self.lane)
        while task >= 0:
            found.append(rows[int(task)])
            task = self.waiting.tasks[task]["next"]
        return found

    def drop(self, r, now_s) -> None:
        self.waiting.forget(self.tasks.pop(r), now_s)

    def price(self, arrival_s, urgency, predicted_s, due_s, now_s, cv):
        """(expected misses, predicted end)."""
        misses, end_s = self.waiting.forecasts(
            np.array([self.lane]), np.array([predicted_s]), due_s, now_s, cv, arrival_s, urgency
        )
        return misses[0], end_s[0]


def handover_s(ref, decode, prompt, history) -> float:
    step_s = decode.costs.step_s(decode.batch + 1, decode.context + prompt, 0, 0.0)
    return decode.costs.kv_transfer_s(prompt - history) + step_s


def due_s(ref, r, decode, history, queued_s) -> float:
    limit_s = ref.options.slo.ttft_ms / 1e3
    if ref.options.ordering == "algorithm_2":
        return queued_s + limit_s
    prompt = ref.ask(r)
    return ref.out[r].arrival_s + limit_s - handover_s(ref, decode, prompt, history)


def by_toll(ref, r, decode, history, fresh, now_s):
    """(prefill worker or None, decode worker, history)."""
    o = ref.options
    limit_s, cv = o.slo.ttft_ms / 1e3, o.params.toll.expected_error
    prompt, arrival_s = ref.ask(r), ref.out[r].arrival_s
    after_s = handover_s(ref, decode, prompt, history)
    misses, ttft_s = [], []
    for p in ref.prefill:
        due = arrival_s + limit_s - after_s
        urgency = int(ref.w.priority[r])
        own_s = ref.remote_own_s(p, r, history)
        price, end_s = p.queue.price(arrival_s, urgency, own_s, due, now_s, cv)
        misses.append(price)
        ttft_s.append(end_s - now_s + after_s + (now_s - arrival_s))
    d = decode
    if fresh:
        d = min(
            ref.decode,
            key=lambda w: (max(0.0, w.local_until_s - now_s), w.booked + w.made),
        )
        first = (max(0.0, d.local_until_s - now_s), d.booked + d.made)
        if first == (max(0.0, decode.local_until_s - now_s), decode.booked + decode.made):
            d = next(
                w
                for w in ref.decode
                if (max(0.0, w.local_until_s - now_s), w.booked + w.made) == first
            )
    at_hand = ref.hits(d, r) if d is not decode else history
    price, local_s, chunk, own_s = local_price(ref, r, d, at_hand, now_s)
    i, _ = toll(np.array(misses), np.array(ttft_s), price, local_s, limit_s)
    if i < 0:
        ref.schedule, ref.local_s = (chunk,), own_s
        return None, d, at_hand
    return ref.prefill[i], decode, history


def local_price(ref, r, d, history, now_s):
    o = ref.options
    limit_s, cv = o.slo.ttft_ms / 1e3, o.params.toll.expected_error
    prompt = ref.ask(r)
    batch, context = float(d.batch), float(d.context)
    budget = min(float(d.costs.max_chunk_tokens), float(d.spec.max_num_batched_tokens))
    chunk = bearable_chunk(
        d.costs.tables,
        batch,
        context,
        float(prompt),
        float(len(d.locals)),
        float(o.local_chunk_tokens) if o.local_chunk_tokens else budget,
        budget,
        o.params.toll.itl_guard * (o.slo.itl_ms / 1e3),
    )
    if chunk == 0 or ref.blocks(d, d.context + prompt * (len(d.locals) + 1)) > d.spec.num_blocks:
        return 1.0, math.nan, 0, 0.0
    own_s = prefill_beside_s(
        d.costs.tables,
        batch,
        context,
        float(history),
        float(prompt - history),
        min(chunk + batch, budget),
    )
    behind_s = max(0.0, d.local_until_s - now_s)
    ttft_s = behind_s + own_s + (now_s - ref.out[r].arrival_s)
    variance = cv * cv * (own_s * own_s + behind_s * behind_s)
    odds = chance(limit_s - ttft_s, variance)
    if odds < o.params.toll.least_chance:
        return 1.0, math.nan, 0, 0.0
    return 1.0 - odds, ttft_s, int(chunk), own_s


def by_deflection(ref, r, decode, history, fresh, now_s):
    """(prefill worker or None, decode worker, history)."""
    o = ref.options
    prompt = float(ref.ask(r))
    paths = [
        deflect.prefill_path_s(
            p.costs.tables,
            float(sum(ref.asks[each]["uncached"] for each in [*p.flying, *p.queue])),
            prompt,
            float(p.spec.max_num_batched_tokens),
        )
        for p in ref.prefill
    ]
    best, best_s, plan = None, math.inf, ()
    for d in ref.decode:
        if d.locals or (not fresh and d is not decode):
            continue
        counts = np.zeros(deflect.SIZES, np.int64)
        path_s = deflect.largest_safe(
            d.costs.tables,
            float(d.batch),
            float(d.context),
            prompt,
            float(d.spec.max_num_batched_tokens - d.batch),
            deflect.BETA * (o.slo.itl_ms / 1e3),
            counts,
        )
        if path_s < best_s:
            sizes = [1 << (deflect.LARGEST_LOG2 - k) for k in range(deflect.SIZES)]
            plan = tuple(x for x, n in zip(sizes, counts, strict=True) for _ in range(n))
            best, best_s = d, path_s
    i = int(np.argmin(paths))
    if best is not None and deflect.deflects(best_s, paths[i], o.slo.ttft_ms / 1e3, deflect.ALPHA):
        cap = o.local_chunk_tokens or 1 << 30
        ref.schedule = tuple(min(cap, x) for x in plan)
        return None, best, ref.hits(best, r)
    return ref.prefill[i], decode, history


def as_dynamo(ref, r, decode, history, fresh, now_s):
    """(prefill worker or None, decode worker, history)."""
    prompt = ref.ask(r)
    if ref.options.placement == "conditional" and stays_local(
        float(prompt), float(history), EFF_ISL_THRESHOLD, EFF_ISL_RATIO
    ):
        return None, decode, history
    cost = []
    for p in ref.prefill:
        size = p.spec.block_size
        active = sum(ref.asks[each]["uncached"] for each in [*p.flying, *p.queue])
        cost.append(kv_cost(float(ref.blocks(p, prompt)), ref.hits(p, r) // size, active / size))
    return ref.prefill[cheapest(np.array(cost), 0.0, 0.0)], decode, history


PLACES = {
    "toll": by_toll,
    "batch": by_toll,
    "deflect": by_deflection,
    "kv_cost": as_dynamo,
    "conditional": as_dynamo,
}
