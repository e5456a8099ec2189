# SPDX-License-Identifier: Apache-2.0
"""What the router gets to know about decode workers, and when.

Owns: the reports. A worker reports when its batch has changed, not at each step: between two
reports only the tokens made since are missing, and reading the state of a worker costs nothing
(pilot: advancing every worker to read its load is where speed was lost).

Reports are heard `report_delay_s` after they were made. Those under way wait in one ring a worker,
`ctl[NEWS_ROOM]` long; the main loop makes it longer before it is full.
"""

from __future__ import annotations

from controller.simulation.cluster.compiled import kernel
from controller.simulation.cluster.state import (
    BATCH,
    CLOCK,
    CONTEXT,
    DECODE_POOL,
    DELAY,
    MADE,
    NEWS_FULL,
    NEWS_ROOM,
    State,
)


@kernel
def report(s: State, w: int) -> None:
    """The decodes of worker w have changed."""
    worker = s.wrk[w]
    worker.changed = 0
    if s.ctl[DELAY] > 0:
        _send(s, w)
        return
    s.seen[MADE, w] = worker.made
    s.seen[BATCH, w] = worker.decodes
    s.seen[CONTEXT, w] = worker.context


@kernel
def _send(s: State, w: int) -> None:
    hear(s, w)
    worker = s.wrk[w]
    room = s.ctl[NEWS_ROOM]
    news = s.news[w * room + (worker.news_first + worker.news) % room]
    news.at = s.ctl[CLOCK]
    news.made, news.batch, news.context = worker.made, worker.decodes, worker.context
    worker.news += 1
    if worker.news + 2 > room:
        s.ctl[NEWS_FULL] = 1


@kernel
def hear(s: State, w: int) -> None:
    """Take in the reports of worker w that have arrived by now."""
    worker = s.wrk[w]
    room = s.ctl[NEWS_ROOM]
    while worker.news > 0:
        news = s.news[w * room + worker.news_first]
        if news.at + s.ctl[DELAY] > s.ctl[CLOCK]:
            return
        s.seen[MADE, w], s.seen[BATCH, w], s.seen[CONTEXT, w] = news.made, news.batch, news.context
        worker.news_first = (worker.news_first + 1) % room
        worker.news -= 1


@kernel
def hear_all(s: State) -> None:
    """The same for all live decode workers; without a delay nothing is ever under way."""
    if s.ctl[DELAY] > 0:
        for i in range(s.ctl[DECODE_POOL]):
            hear(s, s.pool[1, i])
