# SPDX-License-Identifier: Apache-2.0
"""An estimate as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from controller.estimation.estimate import Estimate
from controller.estimation.poa.loss import Loss
from controller.estimation.poa.report import RoutingReport
from controller.estimation.readings import Known, Reading
from controller.estimation.regime.values import RegimeReason, Verdict


def lines(estimate: Estimate, routing: RoutingReport | None) -> list[str]:
    """What an operator reads first comes first."""
    return [
        *_head(estimate),
        *_pools(estimate),
        *_traffic(estimate),
        *_events(estimate),
        *_routing(routing),
        *_gaps(estimate),
    ]


def _head(estimate: Estimate) -> Iterator[str]:
    yield f"regime        {_verdict(estimate.regime.overall)}"
    if estimate.no_traffic_yet:
        yield "              no traffic observed yet"
    for change in estimate.regime.changes:
        pool = change.role.value if change.role else "all"
        yield f"changed       {pool}: {change.before.value} -> {change.after.value}"
    paper = estimate.regime.paper
    yield f"paper's rule  {_verdict(paper)}"


def _verdict(of: Verdict) -> str:
    return f"{of.regime.value} ({of.reason.value}, confidence {of.confidence:.2f})"


def _pools(estimate: Estimate) -> Iterator[str]:
    for role, pool in estimate.readings.pools.items():
        said = estimate.regime.pools[role]
        if said.reason is RegimeReason.NO_POOL:
            yield f"{role.value:<13} no such pool"
            continue
        count = "?" if pool.workers is None else str(pool.workers)
        yield f"{role.value:<13} {_verdict(said)}; {count} workers"
        yield (
            f"              arrive {_rate(pool.arrived_per_s)}, served {_rate(pool.served_per_s)}, "
            f"backlog {pool.backlog}, wait {_seconds(pool.queue_age_s)}, "
            f"in use {_share(pool.utilisation)}"
        )
        limits = estimate.regime.thresholds_s.get(role)
        if limits:
            first_s, second_s = limits
            yield f"              transition from {first_s:.2f} s, saturated from {second_s:.2f} s"


def _traffic(estimate: Estimate) -> Iterator[str]:
    r = estimate.readings
    yield (
        f"traffic       {_rate(r.started_per_s)} started, {_rate(r.ended_per_s)} ended, "
        f"{r.active} active; by Little's law {r.concurrency}"
    )
    yield (
        f"latency       TTFT mean {_seconds(r.ttft_mean_s)}, p99 {_seconds(r.ttft_p99_s)}; "
        f"ITL mean {_seconds(r.itl_mean_s)}"
    )
    yield f"tokens        in {r.input_tokens}, out {r.output_tokens}, cached {r.cached_tokens}"


def _events(estimate: Estimate) -> Iterator[str]:
    for event in estimate.events:
        yield f"event         {event.reason.value}: {event.what}"


def _routing(routing: RoutingReport | None) -> Iterator[str]:
    if routing is None:
        return
    yield f"routing       {routing.requests} requests of the {routing.source}"
    for name, loss in (
        ("prefill, latency", routing.prefill_latency),
        ("prefill, misses", routing.prefill_misses),
        ("binding, latency", routing.binding_latency),
        ("binding, misses", routing.binding_misses),
    ):
        if loss is not None:
            yield f"  {name:<18} {_loss(loss)}"
    frozen = routing.frozen
    if frozen.ratio_of_sums is not None:
        yield (
            f"  {'poa_frozen':<18} {frozen.ratio_of_sums:.3f} (p50 {frozen.p50:.3f}, p90 "
            f"{frozen.p90:.3f}, max {frozen.max:.3f}); regret a placement {frozen.regret_p50:.3f}"
        )
    if routing.skipped:
        told = ", ".join(f"{count} {why}" for why, count in sorted(routing.skipped.items()))
        yield f"  left out: {told}"
    if routing.incomplete:
        yield "  incomplete: some measures have no records (see docs/regimes.md)"


def _loss(loss: Loss) -> str:
    if loss.ratio is None:
        return f"unknown: {loss.windows} windows"
    interval = ""
    if loss.low is not None and loss.high is not None:
        interval = f" [{loss.low:.3f}, {loss.high:.3f}]"
    bound = "" if loss.exact_share == 1.0 else f", {loss.exact_share:.0%} of them exact"
    return f"{loss.ratio:.3f}{interval} over {loss.windows} windows{bound}"


def _gaps(estimate: Estimate) -> Iterator[str]:
    if estimate.failures:
        for target, why in sorted(estimate.failures.items()):
            yield f"no answer     {target}: {why}"
    if estimate.orphans:
        gone = ", ".join(f"{worker:x}" for worker in estimate.orphans)
        yield f"ignored       series of workers that are gone: {gone}"
    unknown = estimate.unknown
    if unknown:
        told = ", ".join(f"{name} ({why})" for name, why in unknown.items())
        yield f"unknown       {len(unknown)}: {told}"
    if estimate.stale:
        told = ", ".join(f"{name} ({age:.0f} s)" for name, age in estimate.stale.items())
        yield f"stale         {len(estimate.stale)}: {told}"


def _rate(of: Reading) -> str:
    return f"{of.value:.2f}/s" if isinstance(of, Known) else str(of)


def _seconds(of: Reading) -> str:
    if not isinstance(of, Known):
        return str(of)
    text = f"{of.value * 1e3:.0f} ms" if of.value < 10 else f"{of.value:.1f} s"
    return f">{text} (censored)" if of.at_least else text


def _share(of: Reading) -> str:
    return f"{of.value:.0%}" if isinstance(of, Known) else str(of)
