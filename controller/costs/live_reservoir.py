# SPDX-License-Identifier: Apache-2.0
"""A bounded sample of a worker's passes that covers rare shapes and forgets what is old.

Owns: which passes are kept. Does not own: which count at all (live_passes), fitting (live_fit).

Passes are kept by stratum, so that a thousand decode steps at batch 16 do not push out the one
prefill of 8,000 tokens. A full stratum takes a pass only every `half_life / (capacity * ln 2)`
seconds and lets it replace a random one (biased reservoir sampling, Aggarwal, VLDB 2006): the
chance that a pass is still there halves every `half_life_s` while its stratum is being visited.
A stratum that nobody visits forgets nothing: there is nothing better to know about it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from controller.costs.live_passes import Pass, Shape


class Reservoir:
    """At most `max_passes` passes, `capacity` a stratum."""

    def __init__(self, capacity: int, max_passes: int, half_life_s: float, seed: int) -> None:
        self._capacity = capacity
        self._max_passes = max_passes
        self._spacing_s = half_life_s / (capacity * math.log(2))
        self._rng = random.Random(seed)
        self._strata: dict[Shape, list[Pass]] = {}
        self._newest_s: dict[Shape, float] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[Pass]:
        for kept in self._strata.values():
            yield from kept

    def strata(self) -> dict[Shape, tuple[Pass, ...]]:
        """The kept passes by stratum, none empty."""
        return {key: tuple(kept) for key, kept in self._strata.items() if kept}

    def offer(self, one: Pass) -> None:
        """Keep this pass, or not. Passes come in order of time."""
        kept = self._strata.setdefault(one.stratum, [])
        if len(kept) < self._capacity:
            if self._total >= self._max_passes:
                self._evict()
            kept.append(one)
            self._total += 1
        elif one.at_s - self._newest_s[one.stratum] >= self._spacing_s:
            kept[self._rng.randrange(len(kept))] = one
        else:
            return
        self._newest_s[one.stratum] = one.at_s

    def rescale(self, factor: Callable[[Pass], float | None]) -> None:
        """Multiply the time of every pass by its factor; those without one are dropped."""
        for key, kept in self._strata.items():
            pairs = [(one, factor(one)) for one in kept]
            self._strata[key] = [
                one if ratio == 1.0 else replace(one, wall_s=one.wall_s * ratio)
                for one, ratio in pairs
                if ratio is not None
            ]
        self._total = sum(map(len, self._strata.values()))

    def _evict(self) -> None:
        fullest = max(self._strata.values(), key=len)
        fullest.pop(self._rng.randrange(len(fullest)))
        self._total -= 1
