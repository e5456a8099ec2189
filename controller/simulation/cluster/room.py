# SPDX-License-Identifier: Apache-2.0
"""Room in the pools of records that grow while a simulation runs.

Owns: making them longer, with what is in them and what is free. Does not own: when (simulate.py),
their first size (build.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from controller.simulation.cluster import layout
from controller.simulation.cluster import state as at
from controller.simulation.cluster.blocks import relist


def margin(s: at.State) -> int:
    """Most holdings, references or stints that one event or composition can use up.

    A composition admits at most all seats, each with a path of segments that may be split.
    """
    longest = int(np.diff(s.path_start).max(initial=0))
    return 4 * (int(s.wrk["max_seqs"].max()) + 2) * (longest + 3)


def records(kind: np.dtype[Any], count: int) -> Any:
    """Zeroed records whose fields are attributes, compiled or not."""
    return np.zeros(count, kind).view(np.recarray)


def grow_holdings(s: at.State, count: int) -> None:
    """Room for `count` more holdings, and a prefix table to match."""
    hold = _longer(s.hold, count)
    s.ctl[at.HOLD_FREE] = _chain(hold, len(s.hold), int(s.ctl[at.HOLD_FREE]))
    s.ctl[at.HOLDS_LEFT] += count
    bucket = np.full(1 << int(len(hold) - 1).bit_length(), -1, np.int32)
    relist(s.bucket, bucket, hold)
    s.put("hold", hold)
    s.put("bucket", bucket)


def grow_references(s: at.State, count: int) -> None:
    """Room for `count` more references."""
    ref = _longer(s.ref, count)
    s.ctl[at.REF_FREE] = _chain(ref, len(s.ref), int(s.ctl[at.REF_FREE]))
    s.ctl[at.REFS_LEFT] += count
    s.put("ref", ref)


def grow_orphans(s: at.State, count: int) -> None:
    """Room for `count` more orphans."""
    pool = _longer(s.orphan, count)
    s.ctl[at.ORPHAN_FREE] = _chain(pool, len(s.orphan), int(s.ctl[at.ORPHAN_FREE]))
    s.ctl[at.ORPHANS_LEFT] += count
    s.put("orphan", pool)


def grow_news(s: at.State) -> None:
    """Twice the room for reports under way; each ring begins anew at its first one."""
    room, workers = int(s.ctl[at.NEWS_ROOM]), len(s.wrk)
    old = s.news.reshape(workers, room)
    turned = (s.wrk["news_first"][:, None] + np.arange(room)) % room
    news = records(layout.NEWS, 2 * room * workers).reshape(workers, 2 * room)
    news[:, :room] = np.take_along_axis(old, turned, axis=1)
    s.wrk["news_first"] = 0
    s.put("news", news.reshape(-1))
    s.ctl[at.NEWS_ROOM], s.ctl[at.NEWS_FULL] = 2 * room, 0


def grow_log(s: at.State) -> None:
    """Twice the room for steps."""
    s.put("log", _longer(s.log, len(s.log)))


def grow_stints(s: at.State) -> None:
    """Twice the room for stints."""
    s.put("stint", _longer(s.stint, len(s.stint)))


def _longer(old: Any, count: int) -> Any:
    new = records(old.dtype, len(old) + count)
    new[: len(old)] = old
    return new


def _chain(pool: Any, first: int, free: int) -> int:
    """Link the entries from `first` on in front of the free ones; returns the new first one."""
    pool["next"][first:] = np.arange(first + 1, len(pool) + 1)
    pool["next"][-1] = free
    return first
