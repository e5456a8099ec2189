# SPDX-License-Identifier: Apache-2.0
"""What a placement says beyond remote or local reaches the decode leg."""

import pytest
from relay_kit import PREFILL_WORKER, RelayHarness, answers

from controller.runtime.emulated.protocol import parse_request
from controller.runtime.router.handover import decode_request, is_handover, local_answer
from controller.types import Decision, DecisionReason, Place

pytestmark = pytest.mark.unit


class Says:
    """A rule that always decides the same, and remembers what it was shown."""

    def __init__(self, **fields):
        self.decision = Decision(Place.LOCAL, None, DecisionReason.TOLL_LOCAL, **fields)
        self.seen = []

    def place(self, task, view):
        self.seen.append((task, view))
        return self.decision


def harness(costs, tmp_path, rule, workers=(1, 2)):
    made = RelayHarness(costs, tmp_path, dict.fromkeys(workers, answers))
    made.core._rule = rule
    made.decode_state.sync(workers)
    return made


async def test_a_chunk_schedule_arrives_at_the_engine(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, Says(chunks=(50, 25)))
    await relay.run()
    _, request, _ = relay.decode.sent[0]
    assert parse_request(request, 10_000).chunks == (50, 25)
    assert parse_request(request, 10_000).source is None
    assert relay.records()[0]["chunks"] == [50, 25]


def test_without_a_schedule_the_request_is_as_it_was():
    request = {"token_ids": [1]}
    assert "prefill_result" not in decode_request(request, local_answer())
    assert not is_handover(local_answer((5,), 7))


async def test_a_local_prefill_may_be_bound_elsewhere(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, Says(decode_id=2), workers=(1, 2, 3))
    for _ in range(5):
        await relay.run()
    assert [worker for worker, _, _ in relay.decode.sent] == [2] * 5
    assert relay.loads.context_tokens(1, 0.0) == relay.loads.context_tokens(2, 0.0) == 0
    assert relay.decode_state.view(0.0).local_prefills.tolist() == [0, 0, 0]


async def test_a_worker_that_is_gone_is_not_bound(unit_costs, tmp_path):
    relay = harness(unit_costs, tmp_path, Says(decode_id=9))
    assert (await relay.run())[-1]["finish_reason"] == "length"


async def test_a_known_prompt_returns_to_its_worker_and_counts_as_history(unit_costs, tmp_path):
    rule = Says()
    relay = harness(unit_costs, tmp_path, rule, workers=(1, 2, 3))
    await relay.run(prompt=200)
    first = relay.decode.sent[0][0]
    for _ in range(5):
        await relay.run(prompt=300)
    assert {worker for worker, _, _ in relay.decode.sent} == {first}
    task, view = rule.seen[-1]
    # The prompt of 300 was there before: four whole blocks of 64.
    assert (task.history_tokens, view.fresh) == (256, False)
    assert view.decode.worker_ids[view.bound] == first


async def test_its_own_booking_is_no_load_to_a_request(unit_costs, tmp_path):
    rule = Says()
    relay = harness(unit_costs, tmp_path, rule)
    await relay.run(prompt=200)
    assert rule.seen[0][1].decode.held_tokens.tolist() == [0, 0]
    assert relay.prefill.live() == (PREFILL_WORKER,)
