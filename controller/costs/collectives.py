# SPDX-License-Identifier: Apache-2.0
"""Times of the collectives that tensor, pipeline, data and expert parallelism need.

Owns: alpha-beta formulae of ring algorithms over one `Link`. Does not own: which collective a
layer needs (compose), KV transfers between workers (links). Contention with other traffic is not
modelled; the bandwidth is what one rank sends in one direction.

With n ranks, latency alpha and bandwidth B (Thakur, Rabenseifner, Gropp 2005, section 3):
all-reduce 2(n-1)*alpha + 2(n-1)/n * bytes/B; all-gather, reduce-scatter and all-to-all
(n-1)*alpha + (n-1)/n * bytes/B; a message alpha + bytes/B. One rank pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A connection: seconds until the first byte, then bytes a second in one direction."""

    latency_s: float
    bandwidth_bytes_s: float

    def message_s(self, size_bytes: float, sharers: int = 1) -> float:
        """One message while `sharers` messages (this one included) share the link equally."""
        if size_bytes <= 0:
            return 0.0
        return self.latency_s + size_bytes * max(1, sharers) / self.bandwidth_bytes_s


def all_reduce_s(link: Link, ranks: int, size_bytes: float) -> float:
    """Sum a buffer of `size_bytes` over `ranks`, the result everywhere (tensor parallelism)."""
    return 2.0 * all_gather_s(link, ranks, size_bytes)


def all_gather_s(link: Link, ranks: int, size_bytes: float) -> float:
    """Collect a buffer that is `size_bytes` when whole; reduce-scatter costs the same."""
    if ranks <= 1 or size_bytes <= 0:
        return 0.0
    hops = ranks - 1
    return hops * link.latency_s + hops / ranks * size_bytes / link.bandwidth_bytes_s


def all_to_all_s(link: Link, ranks: int, size_bytes: float) -> float:
    """Every rank holds `size_bytes` and sends an equal share of it to each rank (experts)."""
    return all_gather_s(link, ranks, size_bytes)
