# SPDX-License-Identifier: Apache-2.0
"""KV transfers between given workers: which link they use and how many share it.

Owns: choosing the link by where source and target lie, and equal sharing. Does not own: the
formula of one message (collectives.Link), how many transfers are in flight (the caller knows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.costs.collectives import Link


@dataclass(frozen=True, slots=True)
class KvLinks:
    """Links between nodes. `nodes` says where each worker lies; a worker not named is a node.

    `between` overrides the two defaults for a pair of nodes, in the direction of the transfer.
    """

    bytes_per_token: float
    within_node: Link
    across_nodes: Link
    nodes: Mapping[str, str] = field(default_factory=dict)
    between: Mapping[tuple[str, str], Link] = field(default_factory=dict)

    def link(self, source: str, target: str) -> Link:
        """The link that a transfer from worker `source` to worker `target` uses."""
        start, end = self.nodes.get(source, source), self.nodes.get(target, target)
        if (start, end) in self.between:
            return self.between[start, end]
        return self.within_node if start == end else self.across_nodes

    def transfer_s(self, tokens: float, source: str, target: str, sharers: int = 1) -> float:
        """Seconds to move the KV of `tokens`, `sharers` transfers (this included) on the link.

        0 for 0 tokens and for a worker to itself. With n equal sharers each gets 1/n of the
        bandwidth; the latency is not shared.
        """
        if tokens <= 0 or source == target:
            return 0.0
        size = tokens * self.bytes_per_token
        return self.link(source, target).message_s(size, sharers)


def fair_finish_s(link: Link, starts_s: list[float], sizes_bytes: list[float]) -> list[float]:
    """When each of some transfers ends if the link is shared equally among those in flight.

    Processor sharing, exact: between two events every transfer in flight moves at B/n. Starts and
    ends are on one clock; the latency passes before a transfer takes any bandwidth.
    """
    left = [float(size) for size in sizes_bytes]
    ready = [start + link.latency_s for start in starts_s]
    never = float("inf")
    ends = [start if size <= 0 else never for start, size in zip(starts_s, left, strict=True)]
    now = 0.0
    while any(end == float("inf") for end in ends):
        waiting = [i for i, end in enumerate(ends) if end == float("inf")]
        flying = [i for i in waiting if ready[i] <= now]
        coming = [ready[i] for i in waiting if ready[i] > now]
        if not flying:
            now = min(coming)
            continue
        rate = link.bandwidth_bytes_s / len(flying)
        first = min(flying, key=lambda i: left[i])
        done = now + left[first] / rate
        until = min([done, *coming])
        for i in flying:
            left[i] -= (until - now) * rate
        if until == done:
            left[first], ends[first] = 0.0, done
        now = until
    return ends
