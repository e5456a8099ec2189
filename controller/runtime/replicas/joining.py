# SPDX-License-Identifier: Apache-2.0
"""A router's group, made from its configuration, and its metrics."""

from __future__ import annotations

from collections.abc import Callable

from controller.config import DeploymentConfig
from controller.costs.model import TableCost
from controller.runtime.clock import Clock
from controller.runtime.replicas.group import Books, GroupSettings, ReplicaGroup
from controller.runtime.replicas.redis_store import RedisStore
from controller.runtime.replicas.sessions import Sessions
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.shared_queues import SharedQueues

_STALE_PERIODS = 20


def make_group(
    name: str,
    config: DeploymentConfig,
    queues: SharedQueues,
    costs: TableCost,
    books: Books,
    sessions: Sessions,
    clock: Clock,
    changed: Callable[[int], None],
) -> ReplicaGroup:
    """The group of `config.router.redis`, which must be set. Routers of one model are a group."""
    redis = config.router.redis
    assert redis is not None
    prefix = f"{redis.prefix}:{config.dynamo.namespace}:{config.model}:{config.router.attachment}"
    return ReplicaGroup(
        name,
        RedisStore(redis.url, prefix, redis.member_ttl_s),
        GroupSettings(redis.period_s, _STALE_PERIODS * redis.period_s / clock.scale, redis.host),
        queues,
        costs,
        books,
        sessions,
        clock.now,
        changed,
    )


def export_group(metrics: RouterMetrics, group: ReplicaGroup, queues: SharedQueues) -> None:
    """Gauges that say how the replicas see each other."""

    def age_s() -> float:
        age = group.stale_s()
        return float("nan") if age is None else age

    for name, text, read in (
        ("replicas", "Routers that are members, this one included.", lambda: group.replicas),
        ("replica_links", "Other members that can be asked now.", lambda: group.links),
        ("redis_up", "1: Redis answered last time; 0: going on without.", lambda: group.redis_up),
        ("owned_queues", "Prefill queues that this router serves.", queues.owned),
        ("places_asked", "Places of ours in other routers' queues.", lambda: group.places[0]),
        ("places_given", "Places of other routers in our queues.", lambda: group.places[1]),
        ("replica_books_age_seconds", "Age of the oldest books heard; NaN: none.", age_s),
    ):
        metrics.gauge(name, text, read)
