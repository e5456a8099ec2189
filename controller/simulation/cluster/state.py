# SPDX-License-Identifier: Apache-2.0
"""The arrays a simulation lives in, and the places and codes that kernels use in them.

Owns: which arrays there are. Does not own: the records in them (layout.py), how they are filled
(build.py), how they change (the kernels).
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np

from controller.simulation.cluster.compiled import Bundle, bundle_type
from controller.simulation.cluster.layout import (
    EVENT,
    HOLDING,
    NEWS,
    ORPHAN,
    REFERENCE,
    REQUEST,
    STEPS,
    STINT,
    WORKER,
)


class State(Bundle):
    """Everything that changes in a run, and the tables it reads."""

    fields = MappingProxyType(
        {
            "req": (REQUEST, 1),  # (n,)
            "wrk": (WORKER, 1),  # (workers,) prefill workers, then decode workers
            "hold": (HOLDING, 1),  # grows
            "ref": (REFERENCE, 1),  # grows
            "log": (STEPS, 1),  # grows
            "stint": (STINT, 1),  # grows
            "orphan": (ORPHAN, 1),  # grows
            "event": (EVENT, 1),  # (events,) cluster events to come, in order
            "news": (NEWS, 1),  # (workers * room,) reports under way, a ring a worker
            "ctl": (np.int64, 1),  # scalars, places below
            "par": (np.float64, 1),  # parameters, places below
            "mem": (np.int64, 1),  # heaps of ends and residue counts of all workers
            "due": (np.int64, 1),  # (workers,) instant of the next event
            "heap": (np.int32, 1),  # (workers,) heap of workers by `due`
            "slot": (np.int32, 1),  # (workers,) place in the heap, -1
            "ready": (np.int32, 1),  # (workers,) who composes at this instant, first one last
            "later_key": (np.int64, 1),  # heap of followers to arrive
            "later_row": (np.int32, 1),
            "own": (np.int32, 1),  # rows that arrive by themselves, in order
            "books": (np.float64, 2),  # (BOOKS, workers) the router's own books
            "seen": (np.int64, 2),  # (SEEN, workers) what it knows of workers
            "pool": (np.int32, 2),  # (2, workers) live prefill workers, live decode workers
            "scratch": (np.int64, 1),
            "estimate": (np.float64, 2),  # (4, workers)
            "bound": (np.int32, 1),  # (sessions,) decode worker
            "live": (np.int32, 1),  # (segments,) holdings of each segment
            "path_start": (np.int64, 1),  # (n + 1,) of the first round of a stream
            "path": (np.int32, 2),  # (path, 2) segment, ids up to its end
            "bucket": (np.int32, 1),  # prefix table
            "front": (np.int64, 2),  # (rows, workers) remembered look-ups, see blocks.front_word
            "data": (np.float64, 1),  # cost tables, packed
            "bounds": (np.int64, 2),  # (tables, fields + 1)
            "line": (np.float64, 2),  # (tables * batches, 4) a, c, from, until
        }
    )


_ROOMS = Path(__file__).parents[2]
bundle_type(
    State,
    (
        *Path(__file__).parent.glob("*.py"),
        *(_ROOMS / "routing" / "kernels").glob("*.py"),
        *(
            _ROOMS / "costs" / name
            for name in ("kernels.py", "calls.py", "compiled.py", "tables.py")
        ),
    ),
)

# Places in `ctl`.
CLOCK = 0  # key of this instant
NEXT_OWN = 1
LATER = 2  # followers in the heap
WORKERS_DUE = 3
READY = 4
HOLD_FREE = 5
HOLDS_LEFT = 6
REF_FREE = 7
REFS_LEFT = 8
LOG_USED = 9
STINT_USED = 10
PREFILL_POOL = 11  # live workers of each side, by role
DECODE_POOL = 12
SHARED_SEGMENTS = 14
BLOCK_TOKENS = 15
PLACEMENT = 17
BINDING = 18
ORDERING = 19
TURN = 20  # round robin of prefill workers
DECODE_TURN = 21
SEED = 22
DECISIONS = 23
KEEP_LOG = 24
OPEN = 25  # requests that have arrived and not ended
SERVED = 26
REJECTED = 27
FAILED = 28
CONTENTION = 29
EVENTS_DONE = 32
BINDINGS = 33
BATCHES = 34  # rows of `line` a table
LOCAL_CHUNK = 35  # cap on the chunks of local prefills, 0 = none
WINDOW = 36  # tasks that an ordering looks at
REJECT = 37  # what is hopeless is refused
CAP = 38  # how often a waiting prefill may be passed
EVENT_AT = 40  # key of the next cluster event, NEVER
NEXT_EVENT = 41
MIGRATION_LIMIT = 42
ORPHAN_FREE = 43
ORPHANS_LEFT = 44
HISTORY_READ = 45  # prefill workers read what the decode worker holds
DELAY = 46  # nanoseconds until a report is heard
NEWS_ROOM = 47  # reports that can be under way from a worker
NEWS_FULL = 48
CTL = 64

# Places in `par`.
TTFT_LIMIT_S = 0
ITL_LIMIT_S = 1
ALPHA = 2
BETA = 3
WINDOW_S = 4
REPORT_DELAY_S = 5
LATE_SHARE = 6
MAX_WAIT_S = 7
COST_CV = 8
LEAST_CHANCE = 10
GUARD = 9  # share of the ITL limit that a step with a local chunk may take
PAR = 16

# Rows of `books` and `seen`.
WAIT_S = 0  # predicted time of what waits at the router
FLY_S = 1  # of what was sent
SINCE_S = 2  # when that began, or last shrank
LOCAL_UNTIL_S = 3  # local prefills are worked off until then
BOOKS = 4

FLYING = 0  # prefills sent
FLY_TOKENS = 1  # their uncached tokens
BOOKED = 2  # prompt tokens of live requests bound to the worker
MADE = 3  # tokens its decodes had generated at its last report
BATCH = 4
CONTEXT = 5
WAIT_TOKENS = 6  # uncached tokens of what waits at the router
SEEN = 7

# Request.status.
PENDING, SERVED_, REJECTED_, FAILED_, UNFINISHED_, NEVER_ISSUED_ = range(6)
# Request.leg.
AT_ROUTER, PREFILL_LEG, DECODE_LEG, LOCAL_LEG, ENDED, ADRIFT = range(6)
# Worker.role and Worker.life.
PREFILLS, DECODES = 0, 1
LIVE, DRAINING, STARTING, DEAD = range(4)
# Request.place.
REMOTE, LOCAL = 0, 1
# What `run` returns.
DONE, PAUSED, NEED_HOLDINGS, NEED_REFERENCES, NEED_LOG, NEED_STINTS, NEED_ORPHANS, NEED_NEWS = (
    range(8)
)
