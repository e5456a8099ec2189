# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a deployment as a source of measurements, and the fix for each. Pure.

Owns: the checks over an estimate: discovery, scrape, identity, signals alive, block sizes,
thresholds, roles. Does not own: fetching, printing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from controller.estimation.estimate import Estimate
from controller.estimation.events import EventReason
from controller.estimation.identity import in_namespace
from controller.estimation.readings import Known, Unknown, Why
from controller.estimation.roster import Role, RoleSource, Worker
from controller.estimation.signals import SPECS, Signal


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Check(str, Enum):
    """What was looked at. Closed: append, never reorder or rename."""

    DISCOVERY = "discovery"
    SCRAPE = "scrape"
    IDENTITY = "identity"
    ROLES = "roles"
    NAMES = "names"
    SIGNALS = "signals"
    PREFIXES = "prefixes"
    BLOCK_SIZE = "block_size"
    THRESHOLDS = "thresholds"
    POOLS = "pools"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line and what to do about it; an OK needs no fix."""

    check: Check
    level: Level
    what: str
    fix: str = ""


FIX_OF_EVENT = {
    EventReason.PREFILL_POOL_EMPTY: "start a prefill worker, or run our router: it prefills on "
    "decode workers meanwhile",
    EventReason.PREFILL_POOL_UNUSED: "look at the conditional disaggregation thresholds "
    "(eff_isl_threshold, eff_isl_ratio_threshold) and at --disaggregation-mode of the workers",
    EventReason.WORKERS_STARVED: "raise --router-temperature, lower the overlap weight, or break "
    "ties at random; a sticky prefix starves workers that were added later",
    EventReason.QUEUE_THRESHOLD: "raise the router's queue threshold, or switch its queue off",
    EventReason.PREFIX_SIGNAL_DEAD: "turn KV events on (publishing by the workers, consuming by "
    "the router) and check that the block sizes agree",
    EventReason.QUEUE_STUCK: "look at the prefill workers' logs and at free KV blocks; a router of "
    "ours places such prefills on decode workers",
    EventReason.DISCOVERY_EMPTY: "check the namespace, the discovery backend and its address",
}
_SERVING = (Signal.STARTED, Signal.TTFT, Signal.ITL, Signal.INPUT_TOKENS, Signal.OUTPUT_TOKENS)
_WORKER_SIDE = (Signal.WORKER_ACTIVE, Signal.WORKER_DURATION)
_ENGINE_SIDE = (Signal.KV_USAGE, Signal.WAITING)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator named."""

    discovery_failure: str | None = None
    namespace: str | None = None
    block_size: int | None = None
    """Of a standalone router (--router-block-size)."""


def diagnose(estimate: Estimate, asked: Asked) -> list[Finding]:
    """All findings, check after check."""
    found = [
        *_discovery(estimate, asked),
        *_scrape(estimate),
        *_identity(estimate),
        *_roles(estimate),
        *_names(estimate),
        *_signals(estimate),
        *_blocks(estimate, asked),
        *_thresholds(estimate),
        *_events(estimate),
    ]
    checked = {finding.check for finding in found}
    return [*found, *(Finding(c, Level.OK, "nothing to report") for c in Check if c not in checked)]


def _discovery(estimate: Estimate, asked: Asked) -> Iterator[Finding]:
    if asked.discovery_failure is not None:
        yield Finding(
            Check.DISCOVERY,
            Level.WARNING,
            f"the live set is not known: {asked.discovery_failure}",
            "give --url of the frontend (its /health lists the instances) or --file-kv",
        )
    elif not estimate.roster.workers:
        yield Finding(
            Check.DISCOVERY,
            Level.ERROR,
            "no worker is registered",
            FIX_OF_EVENT[EventReason.DISCOVERY_EMPTY],
        )
    else:
        pools = {role: len(estimate.roster.of(role)) for role in (Role.PREFILL, Role.DECODE)}
        routers = sum(worker.router for worker in estimate.roster.workers.values())
        ours = f", {routers} router of ours" if routers else ""
        yield Finding(
            Check.DISCOVERY,
            Level.OK,
            f"{pools[Role.PREFILL]} prefill, {pools[Role.DECODE]} decode workers{ours}",
        )
    if asked.namespace is not None:
        yield from _elsewhere(estimate, asked.namespace)


def _elsewhere(estimate: Estimate, namespace: str) -> Iterator[Finding]:
    others = sorted(
        {
            worker.namespace
            for worker in estimate.roster.workers.values()
            if worker.namespace and not in_namespace(worker.namespace, namespace)
        }
    )
    if others:
        yield Finding(
            Check.DISCOVERY,
            Level.NOTE,
            f"workers in other namespaces than {namespace}: {', '.join(others)}",
            "a private namespace behind a router is meant; otherwise check DYN_NAMESPACE",
        )


def _scrape(estimate: Estimate) -> Iterator[Finding]:
    for target, why in sorted(estimate.failures.items()):
        yield Finding(
            Check.SCRAPE,
            Level.ERROR,
            f"{target} does not answer: {why}",
            "check the address; a worker serves /metrics only with DYN_SYSTEM_PORT set (Dynamo "
            "1.4.2 takes no port above 32767)",
        )
    if estimate.stale_targets and not estimate.failures:
        yield Finding(
            Check.SCRAPE,
            Level.WARNING,
            f"{len(estimate.stale_targets)} targets have not been seen for three periods",
            "give --interval of the scrape interval, or look at the Prometheus targets",
        )
    if not estimate.frontends:
        yield Finding(
            Check.SCRAPE,
            Level.ERROR,
            "no target answers as a Dynamo frontend",
            "name the frontend with --url; with DYN_METRICS_PREFIX set there, set it here too",
        )
    if estimate.skipped_lines:
        yield Finding(
            Check.SCRAPE,
            Level.WARNING,
            f"{estimate.skipped_lines} metric lines could not be read",
            "see whether something between the exporter and here rewrites them",
        )


def _identity(estimate: Estimate) -> Iterator[Finding]:
    if estimate.orphans:
        gone = ", ".join(f"{worker:x}" for worker in estimate.orphans)
        yield Finding(
            Check.IDENTITY,
            Level.NOTE,
            f"series of workers that are not registered any more are left out: {gone}",
            "they go when the frontend restarts; dashboards should join with the live set too",
        )
    if _absent(estimate, _WORKER_SIDE) and estimate.roster.workers:
        yield Finding(
            Check.IDENTITY,
            Level.NOTE,
            "no worker is scraped: shares by worker, and with them starvation, are not known",
            "give every worker's /metrics with --target, or --prometheus",
        )


def _roles(estimate: Estimate) -> Iterator[Finding]:
    guessed = [w for w in estimate.roster.workers.values() if w.source is RoleSource.COMPONENT]
    if guessed:
        yield Finding(
            Check.ROLES,
            Level.WARNING,
            f"the role of {_named(guessed)} is a guess by component name",
            "register with worker_type (Dynamo 1.4 and later), or give --file-kv for model cards",
        )
    conditional = [w for w in estimate.roster.of(Role.DECODE) if w.kv_events is False]
    if conditional:
        yield Finding(
            Check.PREFIXES,
            Level.NOTE,
            f"{_named(conditional)} publish no KV events: Dynamo's conditional disaggregation "
            "can never see a local prefix there",
            "turn KV event publishing on for decode workers before relying on it",
        )


def _named(workers: list[Worker]) -> str:
    shown = ", ".join(f"{worker.worker_id:x}" for worker in workers[:3])
    return shown if len(workers) <= 3 else f"{shown} and {len(workers) - 3} more"


def _names(estimate: Estimate) -> Iterator[Finding]:
    for signal, families in estimate.names.items():
        current, *others = families
        if others:
            yield Finding(
                Check.NAMES, Level.OK, f"{signal.value}: {current}, not {', '.join(others)}"
            )
        elif current not in SPECS[signal].names[:1]:
            yield Finding(
                Check.NAMES,
                Level.NOTE,
                f"{signal.value} is read as {current}, a former name",
                f"dashboards that ask for {SPECS[signal].names[0]} see nothing here",
            )


def _signals(estimate: Estimate) -> Iterator[Finding]:
    if estimate.no_traffic_yet:
        yield Finding(
            Check.SIGNALS, Level.OK, "no traffic observed yet: per-model series come with it"
        )
        return
    for signal in (*_SERVING, *_ENGINE_SIDE):
        if signal not in estimate.names and (signal in _SERVING or _scrapes_engines(estimate)):
            both = " or ".join(SPECS[signal].names)
            yield Finding(
                Check.SIGNALS,
                Level.WARNING,
                f"{signal.value} has never been there ({both})",
                "its readings are unknown, not 0; check version and exporter",
            )
    quiet = estimate.readings.ttft_mean_s
    busy = estimate.readings.ended_per_s
    if isinstance(quiet, Unknown) and quiet.why is Why.NO_SAMPLES and _positive(busy):
        yield Finding(
            Check.SIGNALS,
            Level.WARNING,
            "requests end, yet the TTFT histogram counts none",
            "answers without visible text count no first token (the stock mocker with a byte "
            "tokenizer does that); the default detector does not need it",
        )


def _positive(of: object) -> bool:
    return isinstance(of, Known) and of.value > 0


def _scrapes_engines(estimate: Estimate) -> bool:
    return not _absent(estimate, _WORKER_SIDE)


def _absent(estimate: Estimate, signals: tuple[Signal, ...]) -> bool:
    return not any(signal in estimate.names for signal in signals)


def _blocks(estimate: Estimate, asked: Asked) -> Iterator[Finding]:
    sizes = {w.block_size for w in estimate.roster.workers.values() if w.block_size}
    if len(sizes) > 1:
        yield Finding(
            Check.BLOCK_SIZE,
            Level.ERROR,
            f"workers have different KV block sizes: {', '.join(map(str, sorted(sizes)))}",
            "use one --block-size: prefix hashes of different sizes never match",
        )
    elif asked.block_size is not None and sizes and asked.block_size not in sizes:
        yield Finding(
            Check.BLOCK_SIZE,
            Level.ERROR,
            f"the router uses blocks of {asked.block_size}, the workers of {sizes.pop()}",
            "set --router-block-size to the workers' (standalone routers default to 128)",
        )


def _thresholds(estimate: Estimate) -> Iterator[Finding]:
    for worker in estimate.roster.workers.values():
        if not (worker.step_tokens and worker.kv_blocks and worker.block_size):
            continue
        if worker.step_tokens >= worker.kv_blocks * worker.block_size:
            yield Finding(
                Check.THRESHOLDS,
                Level.WARNING,
                f"worker {worker.worker_id:x}: max_num_batched_tokens {worker.step_tokens} is its "
                "whole KV pool, so thresholds that are shares of it never fire",
                "set the chunk size (SGLang: --max-prefill-tokens)",
            )
            return


def _events(estimate: Estimate) -> Iterator[Finding]:
    checks = {
        EventReason.PREFIX_SIGNAL_DEAD: Check.PREFIXES,
        EventReason.QUEUE_THRESHOLD: Check.THRESHOLDS,
        EventReason.DISCOVERY_EMPTY: Check.DISCOVERY,
    }
    for event in estimate.events:
        yield Finding(
            checks.get(event.reason, Check.POOLS),
            Level.ERROR if event.reason is EventReason.PREFILL_POOL_EMPTY else Level.WARNING,
            f"{event.reason.value}: {event.what}",
            FIX_OF_EVENT[event.reason],
        )
