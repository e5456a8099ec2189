# SPDX-License-Identifier: Apache-2.0
"""The law that both sides of a routing loss are replayed by, and the search over assignments.

Owns: the cost of an assignment, enumeration, best found by local search. Does not own: where the
numbers come from.

Each place serves in order of arrival, one after the other: start = max(arrival, free), end = start
+ own. An assignment costs, for latency, the sum of (end - arrival) and harm; for SLO misses, the
number of (end - arrival) above the limit and harm. What is left at a place when the window ends is
not forgiven: for as long again as the window lasted, those who come to the place, `rate` a second,
wait for what is then left of it (latency), or miss while more than the mean limit is left (misses).

A move of one request changes two places only, so a move is priced by replaying those two.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.costs.compiled import compiled
from controller.types import FloatArray, IntArray

LATENCY, MISSES = 0, 1


class Law(NamedTuple):
    """A window under one goal: n requests, m places; a value that kernels can take."""

    arrival: FloatArray
    """(n,) seconds from the window's start, ascending."""
    own: FloatArray
    """(n, m) seconds of service; infinite where the place is no option."""
    limit: FloatArray
    """(n,) seconds."""
    free: FloatArray
    """(m,) seconds of work ahead at the start."""
    harm: FloatArray
    """(n, m) what it costs others, in units of the goal."""
    end_s: float
    """End of the window."""
    rate: float
    """Of those who wait for what is left then: requests a second and place."""
    goal: int
    """LATENCY or MISSES."""


@compiled
def place_cost(place: int, to: IntArray, law: Law) -> float:
    """What place `place` costs when request i goes to `to[i]`; infinite if one cannot run there."""
    at, cost = law.free[place], 0.0
    for i in range(law.arrival.size):
        if to[i] != place:
            continue
        at = max(at, law.arrival[i]) + law.own[i, place]
        waited = at - law.arrival[i]
        if law.goal == LATENCY:
            cost += waited + law.harm[i, place]
        else:
            cost += (1.0 if waited > law.limit[i] else 0.0) + law.harm[i, place]
    left = max(0.0, at - law.end_s)
    if law.goal == LATENCY:
        while_s = min(left, law.end_s)
        return float(cost + law.rate * while_s * (left - while_s / 2.0))
    if left <= 0.0:
        return float(cost)
    limits = 0.0
    for i in range(law.arrival.size):
        limits += law.limit[i]
    return float(cost + law.rate * min(law.end_s, max(0.0, left - limits / law.arrival.size)))


@compiled
def costs_of(to: IntArray, law: Law, out: FloatArray) -> float:
    """`place_cost` of every place into `out`, (places,); their sum."""
    total = 0.0
    for place in range(law.free.size):
        out[place] = place_cost(place, to, law)
        total += out[place]
    return total


@compiled
def enumerate_best(law: Law, to: IntArray, best: IntArray, out: FloatArray) -> float:
    """The least cost of all places**requests assignments; `best` is one that has it."""
    requests, places = law.arrival.size, law.free.size
    for i in range(requests):
        to[i] = 0
    least = -1.0
    while True:
        cost = costs_of(to, law, out)
        if least < 0.0 or cost < least:
            least = cost
            for i in range(requests):
                best[i] = to[i]
        i = 0
        while i < requests:
            to[i] += 1
            if to[i] < places:
                break
            to[i] = 0
            i += 1
        if i == requests:
            return least


@compiled
def greedy(law: Law, to: IntArray, at: FloatArray) -> None:
    """Each request where it ends first, harm added: a start for the search. `at`: (places,)."""
    for j in range(law.free.size):
        at[j] = law.free[j]
    for i in range(law.arrival.size):
        best, least = 0, -1.0
        for j in range(law.free.size):
            harm = law.harm[i, j] if law.goal == LATENCY else 0.0
            end = max(at[j], law.arrival[i]) + law.own[i, j] + harm
            if least < 0.0 or end < least:
                best, least = j, end
        to[i] = best
        at[best] = max(at[best], law.arrival[i]) + law.own[i, best]


@compiled
def improve(law: Law, to: IntArray, out: FloatArray, passes: int, tries: int) -> float:
    """Local search from `to`: single moves, then swaps, while they help. `out`: (places,).

    A request tries the first `tries` places after its own, in their order (for latency: of those
    that could be better at all), and swaps with each of the `tries` requests that came next.
    """
    total = costs_of(to, law, out)
    for _ in range(passes):
        before = total
        for i in range(law.arrival.size):
            total = _best_move(i, law, to, out, total, tries)
        total = _swaps(law, to, out, total, tries)
        if total >= before - 1e-12:
            break
    return total


@compiled
def _best_move(i: int, law: Law, to: IntArray, out: FloatArray, total: float, tries: int) -> float:
    home = to[i]
    best, gain, best_home, best_there = home, 1e-12, 0.0, 0.0
    to[i] = -1
    left = place_cost(home, to, law)
    saved = out[home] - left
    if saved > 0.0:
        tried = 0
        for step in range(1, law.free.size):
            place = (home + step) % law.free.size
            # Alone there, at once: nothing better can be had at this place.
            least = max(law.free[place], law.arrival[i]) + law.own[i, place] - law.arrival[i]
            if law.goal == LATENCY and least + law.harm[i, place] >= saved - gain:
                continue
            to[i] = place
            there = place_cost(place, to, law)
            to[i] = -1
            won = saved - (there - out[place])
            if won > gain:
                best, gain, best_home, best_there = place, won, left, there
            tried += 1
            if tried >= tries:
                break
    to[i] = best
    if best == home:
        return total
    out[home], out[best] = best_home, best_there
    return total - gain


@compiled
def _swaps(law: Law, to: IntArray, out: FloatArray, total: float, reach: int) -> float:
    for i in range(law.arrival.size):
        for k in range(i + 1, min(law.arrival.size, i + 1 + reach)):
            a, b = to[i], to[k]
            if a == b:
                continue
            to[i], to[k] = b, a
            new_a = place_cost(a, to, law)
            new_b = place_cost(b, to, law)
            won = out[a] + out[b] - new_a - new_b
            if won > 1e-12:
                out[a], out[b] = new_a, new_b
                total -= won
            else:
                to[i], to[k] = a, b
    return total
