# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks from the model card to the request: queues and hits are by (worker, rank)."""

import json
import time
from types import SimpleNamespace

import pytest
from test_router_core import FakePort, Harness, good

from controller.routing.decision_record import read_rows
from controller.routing.units import unit
from controller.runtime.router.ports import (
    DynamoPrefillPort,
    PrefixIndex,
    engine_facts,
    prefill_step,
)

pytestmark = pytest.mark.unit


class Index:
    def ensure(self):
        pass


def port(*workers):
    client = SimpleNamespace(instance_ids=lambda: list(workers))
    return DynamoPrefillPort(client, client, Index())


def test_a_worker_without_ranks_is_one_unit_and_names_none():
    plain = port(7, 8)
    plain.equip(7, range(1))
    assert plain.live() == (7, 8)
    assert plain.rank(7) is None


def test_each_rank_is_a_unit_and_is_named_also_rank_0():
    ranked = port(7, 8)
    ranked.equip(7, range(2, 4))  # a node's ranks need not begin at 0
    assert ranked.live() == (unit(7, 2), unit(7, 3), 8)
    assert [ranked.rank(each) for each in ranked.live()] == [2, 3, None]
    ranked.equip(8, range(2))
    assert ranked.rank(8) == 0


def test_the_card_says_how_many_and_which():
    card = {"runtime_config": {"data_parallel_size": 4, "data_parallel_start_rank": 4}}
    assert engine_facts(card).ranks == range(4, 8)
    assert engine_facts({}).ranks == range(1)


async def test_prefix_hits_are_by_rank():
    index = PrefixIndex(None, 64)

    class Router:
        async def get_overlap_scores(self, token_ids):
            rows = [(7, 0, 2), (7, 1, 5), (8, None, 1)]
            return {
                "workers": [{"worker_id": w, "dp_rank": r, "device_blocks": b} for w, r, b in rows]
            }

    index._router = Router()
    assert await index.cached_tokens([1]) == {unit(7, 0): 128, unit(7, 1): 320, 8: 64}


def test_an_engines_step_is_its_ranks():
    metrics = SimpleNamespace(
        worker_id="7",
        dp_rank=3,
        scheduled_requests=SimpleNamespace(sum_prefill_tokens=900),
        queued_requests=SimpleNamespace(sum_prefill_tokens=50),
    )
    step = prefill_step(metrics)
    assert (step.unit_id, step.step_tokens, step.waiting_tokens) == (unit(7, 3), 900, 50)


class RankedPort(FakePort):
    """One worker with two ranks."""

    def live(self):
        return (unit(1, 0), unit(1, 1))

    def rank(self, unit_id):
        return unit_id >> 64


async def test_a_busy_rank_leaves_the_other_one_to_the_next_request(unit_costs, tmp_path):
    ranked = RankedPort(w1=good)
    router = Harness(unit_costs, ranked, tmp_path)
    router.queues.sync(ranked.live())
    router.queues.enqueue(unit(1, 0), 1500, 60.0, time.monotonic())
    await router.run()
    worker, request = ranked.sent[0]
    assert worker == 1
    assert (request["routing"]["dp_rank"], request["routing"]["prefill_worker_id"]) == (1, 1)
    router.log.close()
    row = read_rows(router.log_path.read_text().splitlines())[-1]
    assert (row.worker_id, row.rank) == (1, 1)
    assert row.prefill.worker_ids == (1, 1) and row.prefill.ranks == (0, 1)
    assert json.loads(router.log_path.read_text().splitlines()[-1])["worker_id"] == 1


async def test_a_worker_that_dies_is_left_alone_with_all_its_ranks(unit_costs, tmp_path):
    async def breaks(stopped):
        raise ConnectionResetError("gone")
        yield

    class Pair(RankedPort):
        def live(self):
            return (unit(1, 0), unit(1, 1), 2)

    ranked = Pair(w1=breaks, w2=good)
    router = Harness(unit_costs, ranked, tmp_path)
    await router.run()
    await router.run()
    assert [worker for worker, _ in ranked.sent] == [1, 2, 2]
