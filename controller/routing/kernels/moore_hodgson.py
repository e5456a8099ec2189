# SPDX-License-Identifier: Apache-2.0
"""The largest set of waiting tasks that can all be in time (Moore 1968, with Hodgson's rule).

Owns: marking that set in a queue in order of deadline. Does not own: caps, who is sent (choice.py).

Go through the tasks by deadline and take each; when the last one taken is late, drop the longest
of those taken so far. What is left is a largest on-time set, and served by deadline all of it is
in time: exact for tasks that are all there, whose times are known and of which none is bound to a
place. What a real queue takes from that: tasks that come later (the set is best for what waits
now, not for the day), the prefill in service (it is a start that is not zero; nothing is lost),
wrong predictions, and promises to single tasks (caps, strict priorities, the share for late
work): these are served first and the rest is best given that.
"""

from __future__ import annotations

from typing import Any

from controller.costs.compiled import compiled


@compiled
def keep_on_time(items: Any, head: int, start_s: float, window: int) -> int:
    """Set `kept` of the queue's first `window` tasks from `head` on; returns how many are kept.

    The queue is in order of urgency, then of `due_s`; `start_s` is when the first may begin.
    O(window * drops).
    """
    done_s, kept, seen = start_s, 0, 0
    i = head
    while i >= 0:
        items[i].kept = seen < window
        if seen < window:
            done_s += items[i].predicted_s
            kept += 1
            if done_s > items[i].due_s:
                longest = _longest(items, head, i)
                items[longest].kept = 0
                done_s -= items[longest].predicted_s
                kept -= 1
        seen += 1
        i = items[i].next
    return kept


@compiled
def _longest(items: Any, head: int, last: int) -> int:
    """The longest kept task up to `last`, of its urgency; of equals the last one.

    More urgent ones are never dropped for it.
    """
    longest, i = last, head
    while i != last:
        if (
            items[i].kept
            and items[i].urgency == items[last].urgency
            and items[i].predicted_s > items[longest].predicted_s
        ):
            longest = i
        i = items[i].next
    return longest
