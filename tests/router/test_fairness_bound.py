# SPDX-License-Identifier: Apache-2.0
"""Under overload nobody pays for the others' sake: longest waits and long prompts, against FIFO."""

import numpy as np
import pytest

from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.runtime.router.queues import PrefillQueues, QueueOptions

pytestmark = pytest.mark.unit

BOUND_S = 5.0


def overload(ordering, seed, load=1.5, count=400, workers=2):
    """(prompt tokens, wait in seconds) of each prefill that arrived in an overload.

    Virtual time, the live queues: 1 ms a token, log-normal prompts, two workers, one prefill at a
    time at each, half as much again as they can do.
    """
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(6.5, 1.0, count), 16, 8000).astype(int)
    arrivals = np.cumsum(rng.exponential(tokens.mean() / 1000 / workers / load, count))
    pool = PrefillQueues(InFlightBound(1, 1), 10, ordering, QueueOptions())
    pool.sync(range(1, workers + 1))
    waiting, running, waits, k = [], [], [], 0
    while k < count or waiting or running:
        ends = min((end for end, _ in running), default=np.inf)
        if k < count and arrivals[k] <= ends:
            now = float(arrivals[k])
            n = int(tokens[k])
            worker = min(range(1, workers + 1), key=lambda w: (pool.predicted_s(w, now), w))
            ticket = pool.enqueue(
                worker,
                n,
                n / 1000,
                now,
                due_s=now + 2.0 + n / 1000,
                terms=lambda w, n=n: (n, n / 1000),
            )
            waiting.append((now, n, ticket))
            k += 1
        else:
            now = ends
            over = next(each for each in running if each[0] == ends)
            running.remove(over)
            pool.release(over[1], now)
        for each in [w for w in waiting if w[2].granted.done()]:
            waiting.remove(each)
            came, n, ticket = each
            waits.append((n, now - came))
            running.append((now + n / 1000, ticket))
    return np.array(waits)


def paid(waits):
    """(longest wait, mean wait of the longest tenth of the prompts)."""
    longest = waits[waits[:, 0] >= np.quantile(waits[:, 0], 0.9)]
    return waits[:, 1].max(), longest[:, 1].mean()


@pytest.mark.parametrize("rule", [name for name in ORDERINGS if name != "fifo"])
async def test_with_a_wait_bound_nobody_waits_longer_than_fifo_and_the_bound(rule):
    for seed in range(3):
        fifo = paid(overload(Ordering(ORDERINGS["fifo"]), seed))
        bounded = paid(overload(Ordering(ORDERINGS[rule], max_wait_s=BOUND_S), seed))
        assert bounded[0] <= fifo[0] + BOUND_S
        assert bounded[1] <= fifo[1] + BOUND_S


async def test_without_it_long_prompts_pay_for_shortest_first():
    fifo = paid(overload(Ordering(ORDERINGS["fifo"]), 0))
    shortest = paid(overload(Ordering(ORDERINGS["shortest"]), 0))
    assert shortest[0] > fifo[0] + BOUND_S
    assert shortest[1] > fifo[1] + BOUND_S
