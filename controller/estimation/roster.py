# SPDX-License-Identifier: Apache-2.0
"""Who is alive, and as what: the join of discovery, model cards and metric labels.

Owns: the live set, a worker's role and how it is known. Does not own: reading any of it.

A role comes from the model card's `worker_type`; else from the `worker_type` label of the
frontend's own series; else from the component's name, which is a guess (SGLang calls prefill
workers `backend` too) and is said to be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from controller.estimation.identity import model_name, namespace


class Role(str, Enum):
    """What a worker does."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class RoleSource(str, Enum):
    """How a role is known, best first."""

    CARD = "model card"
    LABEL = "frontend's worker_type label"
    COMPONENT = "component name"


@dataclass(frozen=True, slots=True)
class Worker:
    """A live instance that serves requests; None is unknown."""

    worker_id: int
    role: Role
    source: RoleSource
    namespace: str
    component: str
    model: str | None = None
    block_size: int | None = None
    step_tokens: int | None = None
    """`max_num_batched_tokens`."""
    kv_blocks: int | None = None
    kv_events: bool | None = None
    """Whether it publishes KV events."""
    needs: tuple[str, ...] = ()
    """Roles without which it does not serve."""
    router: bool = False
    """Our router, standing in for workers: it computes nothing itself."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The live set at one instant; `complete`: discovery was read, so who is absent is gone."""

    workers: Mapping[int, Worker]
    complete: bool

    def of(self, role: Role) -> tuple[Worker, ...]:
        """Live workers of a role that compute, aggregated ones for both roles."""
        return tuple(
            each
            for each in self.workers.values()
            if not each.router and each.role in (role, Role.AGGREGATED)
        )

    def counts(self, worker_id: int) -> bool:
        """Whether a series of this worker is to be believed: leftovers of removed ones are not."""
        return not self.complete or worker_id in self.workers


ROUTER_MARK = "equilibrium_router"
"""In `runtime_data` of the model card that our router registers."""


def from_cards(cards: Iterable[tuple[int, str, str, Mapping[str, Any]]]) -> tuple[Worker, ...]:
    """(instance id, namespace, component, model card) each -> workers."""
    return tuple(_from_card(*card) for card in cards)


def _from_card(instance: int, space: str, component: str, card: Mapping[str, Any]) -> Worker:
    runtime = _mapping(card.get("runtime_config"))
    role, source = role_named(card.get("worker_type")), RoleSource.CARD
    if role is None:
        role, source = _role_of_component(component), RoleSource.COMPONENT
    name = card.get("display_name")
    data = _mapping(runtime.get("runtime_data"))
    return Worker(
        worker_id=instance,
        role=role,
        source=source,
        namespace=namespace(space),
        component=component,
        model=model_name(name) if isinstance(name, str) else None,
        block_size=_count(card.get("kv_cache_block_size")),
        step_tokens=_count(runtime.get("max_num_batched_tokens")),
        kv_blocks=_count(runtime.get("total_kv_blocks")),
        kv_events=_flag(runtime.get("kv_event_publishing_enabled")),
        needs=_needs(card.get("needs")),
        router=bool(data.get(ROUTER_MARK)),
    )


def from_instances(instances: Iterable[Mapping[str, Any]]) -> tuple[Worker, ...]:
    """Entries of a frontend's `/health` that serve `generate` -> workers, roles by component."""
    found = []
    for each in instances:
        number, component = each.get("instance_id"), each.get("component")
        if each.get("endpoint") != "generate" or not isinstance(number, int):
            continue
        if isinstance(component, str):
            where = namespace(str(each.get("namespace") or ""))
            role = _role_of_component(component)
            found.append(Worker(number, role, RoleSource.COMPONENT, where, component))
    return tuple(found)


def merged(
    registered: Iterable[Worker],
    labelled: Mapping[int, Role] | None = None,
    complete: bool = True,
) -> Roster:
    """One roster. Of two entries for a worker the one with the better known role wins.

    `labelled`: roles by the frontend's own labels. They correct roles that were only guessed; they
    add nobody to a complete roster, since a label outlives its worker.
    """
    workers: dict[int, Worker] = {}
    order = list(RoleSource)
    for each in registered:
        known = workers.get(each.worker_id)
        if known is None or order.index(each.source) < order.index(known.source):
            workers[each.worker_id] = each
    for worker, role in (labelled or {}).items():
        known = workers.get(worker)
        if known is not None and known.source is RoleSource.COMPONENT:
            workers[worker] = replace(known, role=role, source=RoleSource.LABEL)
        elif known is None and not complete:
            workers[worker] = Worker(worker, role, RoleSource.LABEL, "", "")
    return Roster(workers, complete)


def role_named(value: Any) -> Role | None:
    """`worker_type` as model cards and metric labels write it; None for anything else."""
    if not isinstance(value, str):
        return None
    return next((role for role in Role if role.value == value.strip().lower()), None)


def _role_of_component(component: str) -> Role:
    return Role.PREFILL if "prefill" in component.lower() else Role.DECODE


def _needs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(str(each) for group in value if isinstance(group, list) for each in group)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    ok = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if ok else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
