# SPDX-License-Identifier: Apache-2.0
"""Load as the sum of unequal clients, each with its own rate, burstiness and lengths.

Owns: the mixture. Does not own: gaps (arrivals), lengths (../lengths).

After ServeGen (alibaba/ServeGen): production load is made by a few heavy and many light clients,
and its bursts by few of them. The spreads in `draw_clients` are assumptions, not its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.simulation.lengths import Lengths
from controller.simulation.traces import TraceError
from controller.simulation.workloads.arrivals import GapLaw, arrival_times
from controller.simulation.workloads.rows import single_rounds
from controller.simulation.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Client:
    """One source of single requests; `rate` in requests a second, `cv` of its gaps."""

    rate: float
    prompt: Lengths
    output: Lengths
    cv: float = 1.0
    law: GapLaw = GapLaw.GAMMA


@dataclass(frozen=True, slots=True)
class ClientSpread:
    """How unequal drawn clients are [assumption]."""

    zipf: float = 1.1
    """The k-th client sends in proportion to k^-zipf."""
    cv_median: float = 1.5
    cv_sigma: float = 0.6
    """Of the logarithm of a client's CV."""
    length_sigma: float = 0.7
    """Of the logarithm of a client's mean lengths, prompt and output apart."""


def client_load(
    clients: Sequence[Client], duration_s: float, seed: int, name: str = "clients"
) -> Workload:
    """Every client's requests in one workload; the tenant is the client's number.

    Each client has random numbers of its own: adding one does not change the others.
    """
    if not clients:
        raise TraceError(f"{name}: no client")
    parts = []
    for number, (client, child) in enumerate(
        zip(clients, np.random.SeedSequence(seed).spawn(len(clients)), strict=True)
    ):
        rng = np.random.default_rng(child)
        times = arrival_times(rng, client.rate, duration_s, client.cv, client.law)
        prompt = client.prompt.draw_many(rng, len(times))
        output = client.output.draw_many(rng, len(times))
        parts.append((times, prompt, output, np.full(len(times), number)))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    arrival_s, prompt, output, tenant = columns
    if not len(arrival_s):
        raise TraceError(f"{name}: no request arrives; raise the rates or the duration")
    return single_rounds(name, arrival_s, prompt, output, tenant=tenant)


def draw_clients(
    count: int,
    total_rate: float,
    prompt: Lengths,
    output: Lengths,
    seed: int,
    spread: ClientSpread | None = None,
) -> list[Client]:
    """`count` unequal clients that together send `total_rate` requests a second."""
    spread = spread or ClientSpread()
    rng = np.random.default_rng(seed)
    share = np.arange(1, count + 1) ** -spread.zipf
    share /= share.sum()
    cvs = np.clip(spread.cv_median * np.exp(rng.normal(0, spread.cv_sigma, count)), 0.1, 30)
    sizes = np.exp(rng.normal(-(spread.length_sigma**2) / 2, spread.length_sigma, (count, 2)))
    return [
        Client(
            rate=float(total_rate * share[k]),
            prompt=_scaled(prompt, float(sizes[k, 0])),
            output=_scaled(output, float(sizes[k, 1])),
            cv=float(cvs[k]),
        )
        for k in range(count)
    ]


def _scaled(lengths: Lengths, factor: float) -> Lengths:
    return Lengths(lengths.mean * factor, lengths.sigma, lengths.low, lengths.high)
