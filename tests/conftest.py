# SPDX-License-Identifier: Apache-2.0
"""Record builders shared by the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from hypothesis import settings
from view_kit import make_task, make_view

from controller.costs.model import TableCost
from controller.costs.tables import linear_tables
from controller.types import ClusterView, PrefillTask

# The first call of a cost model may compile its kernels: no deadline for single examples.
settings.register_profile("equilibrium", deadline=None)
settings.load_profile("equilibrium")


@pytest.fixture
def redis_server(tmp_path):
    """A redis-server of the test's own; skips, with a reason, where it is not installed."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    from experiments.redis_process import redis_server as running_redis

    with running_redis(tmp_path) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first compiles the simulator: minutes on a busy machine, in its time."""
    for item in items:
        compiles = "simulator_is_compiled" in getattr(item, "fixturenames", ())
        if compiles and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def unit_costs() -> TableCost:
    """1 ms a prompt token, 10 ms a step, 0.1 ms a KV token moved: arithmetic by head."""
    return TableCost(
        linear_tables(
            base_s=0.010,
            per_sequence_s=0.001,
            per_context_token_s=0.0,
            per_prefill_token_s=0.001,
            per_prefill_pair_s=0.0,
            max_chunk_tokens=1000,
            kv_latency_s=0.0,
            kv_bytes_per_token=1,
            kv_bandwidth_bytes_s=10_000.0,
        )
    )


@pytest.fixture
def task() -> Callable[..., PrefillTask]:
    return make_task


@pytest.fixture
def view() -> Callable[..., ClusterView]:
    return make_view
