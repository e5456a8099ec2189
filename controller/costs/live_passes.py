# SPDX-License-Identifier: Apache-2.0
"""One forward pass as its worker reported it, and which passes a fit must not see.

Owns: `Pass` (the scheduled part of Dynamo's ForwardPassMetrics), its shape, the exclusion of
passes that say nothing about steady speed. Does not own: receiving them (runtime), fitting.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum

Shape = tuple[int, ...]


class LeftOut(str, Enum):
    """Why a pass does not count. Closed: append, never reorder or rename."""

    IDLE = "idle"
    """A heartbeat: nothing was scheduled."""
    INVALID = "invalid"
    """A time or a count that cannot be."""
    WARM_UP = "warm_up"
    """Among the first passes of its worker: lazy allocation, autotuning, cold caches."""
    FIRST_OF_SHAPE = "first_of_shape"
    """The worker's first pass of this shape: kernels are compiled, graphs captured."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass. Seconds and tokens; the names in brackets are ForwardPassMetrics' own."""

    worker: str
    at_s: float
    """When it was received, on the caller's one clock."""
    batch: int
    """Decoding requests (scheduled.num_decode_requests)."""
    context: int
    """KV tokens those hold (scheduled.sum_decode_kv_tokens)."""
    prefills: int
    """Requests that compute prompt tokens (scheduled.num_prefill_requests)."""
    chunk: int
    """Prompt tokens computed (scheduled.sum_prefill_tokens)."""
    history: int
    """KV tokens that those build on (scheduled.sum_prefill_kv_tokens)."""
    wall_s: float
    """How long it took (wall_time)."""
    number: int = 0
    """Count of its worker's messages (counter_id); 0 if not stamped."""

    @property
    def pairs(self) -> float:
        """Sum over its prompts of chunk*(history + chunk/2).

        Exact for one prompt. Of several only sums are reported: then the expectation when every
        split of the tokens is equally likely and every prompt builds on as much history.
        """
        if self.prefills < 1:
            return 0.0
        return self.chunk * (self.history / self.prefills + self.chunk / (self.prefills + 1))

    @property
    def pairs_bounds(self) -> tuple[float, float]:
        """What the sum could be at least and at most."""
        if self.prefills < 2:
            return self.pairs, self.pairs
        return self.chunk**2 / (2 * self.prefills), self.chunk * (self.history + self.chunk / 2)

    @property
    def is_prefill(self) -> bool:
        """Whether it computed prompt tokens (perhaps beside decodes)."""
        return self.chunk > 0

    @property
    def shape(self) -> Shape:
        """Half octaves of batch and chunk: what kernels and graphs are chosen by."""
        return _half_octave(self.batch), _half_octave(self.chunk)

    @property
    def stratum(self) -> Shape:
        """The shape, octaves of the context a sequence and a prompt have, several prompts apart."""
        context = self.context // max(1, self.batch)
        history = self.history // max(1, self.prefills)
        several = int(self.prefills > 1)
        return (*self.shape, context.bit_length(), history.bit_length(), several)


def _half_octave(count: int) -> int:
    return 0 if count < 1 else 1 + round(2 * math.log2(count))


class ColdStart:
    """Remembers what each worker has done, to leave out what a cold engine reports."""

    def __init__(self, warm_up_passes: int) -> None:
        self._warm_up_passes = warm_up_passes
        self._passes: Counter[str] = Counter()
        self._shapes: set[tuple[str, Shape]] = set()

    def left_out(self, one: Pass) -> LeftOut | None:
        """Why this pass must not count, or None. To be asked once for every pass, in order."""
        if one.batch == 0 and one.chunk == 0:
            return LeftOut.IDLE
        if not _possible(one):
            return LeftOut.INVALID
        # A worker that has run for long before anybody listened is warm.
        self._passes[one.worker] = max(self._passes[one.worker] + 1, one.number)
        key = (one.worker, one.shape)
        if key not in self._shapes:
            self._shapes.add(key)
            return LeftOut.FIRST_OF_SHAPE
        if self._passes[one.worker] <= self._warm_up_passes:
            return LeftOut.WARM_UP
        return None


def _possible(one: Pass) -> bool:
    counts = (one.batch, one.context, one.prefills, one.chunk, one.history)
    return (
        math.isfinite(one.wall_s)
        and one.wall_s > 0
        and min(counts) >= 0
        and (one.chunk > 0) == (one.prefills > 0)
    )
