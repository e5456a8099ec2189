# SPDX-License-Identifier: Apache-2.0
"""How much work a router may have inside an engine at once.

Work held back stays orderable, but an engine that is fed one request at a time runs short
batches: on the stock mocker 16 in flight against 1 gave 4.85 times the throughput at 128-token
prompts. The bound is therefore in uncached tokens: what the running step holds plus one full
step, so that the next step is always full when the work for it exists.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InFlightBound:
    """`max_num_batched_tokens` of the engine, in `steps` full steps."""

    max_num_batched_tokens: int
    steps: int = 2

    @property
    def tokens(self) -> int:
        """The bound in uncached tokens."""
        return self.steps * self.max_num_batched_tokens

    def admits(self, in_flight_tokens: int, uncached_tokens: int) -> bool:
        """Whether one more prefill may be sent. An empty engine always takes one."""
        return in_flight_tokens == 0 or in_flight_tokens + uncached_tokens <= self.tokens
