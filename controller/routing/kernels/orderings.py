# SPDX-License-Identifier: Apache-2.0
"""Names and settings of the rules that order the prefills waiting for one worker.

Owns: the codes, the settings as compiled rules read them. Does not own: the rules (choice.py,
algorithm_2.py, moore_hodgson.py), what a place is worth under them (forecast.py).
"""

from __future__ import annotations

from typing import NamedTuple

FIFO, ALGORITHM_2, HOPELESS_LAST, EARLIEST_DEADLINE, MOORE_HODGSON, SHORTEST = range(6)

ORDERINGS = {
    "fifo": FIFO,
    "algorithm_2": ALGORITHM_2,
    "hopeless_last": HOPELESS_LAST,
    "earliest_deadline": EARLIEST_DEADLINE,
    "moore_hodgson": MOORE_HODGSON,
    "shortest": SHORTEST,
}
"""Codes by name.

fifo               as they came
algorithm_2        AMPD (arXiv 2602.14516, section 4): best permutation of the first w
hopeless_last      as they came, but what cannot be in time any more lets the others pass
earliest_deadline  the same by deadline
moore_hodgson      the largest on-time set, by deadline; the rest afterwards
shortest           least predicted time first (Dynamo's `wspt` with equal weights)
"""

MOST_WINDOW = 5
"""Algorithm 2 tries all permutations: 120 of five tasks (the paper stays under 5)."""


class Ordering(NamedTuple):
    """One rule and its settings; scalars only, so that kernels can take it."""

    kind: int
    window: int = 3
    """Algorithm 2: tasks it permutes, at most MOST_WINDOW, also its cap on postponements.
    Moore-Hodgson: tasks that it looks at."""
    late_share: float = 0.0
    """Share of prefill tokens kept for what is late already, oldest first; below 1."""
    max_wait_s: float = float("inf")
    """What has waited this long goes first, oldest first."""
    cap: int = 0
    """How often a task may be passed by one that came later; then it goes first. 0: any number.
    Algorithm 2 has its own cap, the window."""
