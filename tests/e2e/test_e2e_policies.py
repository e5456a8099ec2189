# SPDX-License-Identifier: Apache-2.0
"""Placement rules and orderings on whole deployments of emulated engines."""

import asyncio

import pytest

from controller.config import OrderingConfig

pytestmark = pytest.mark.e2e

HOPELESS_LAST = OrderingConfig(rule="hopeless_last", late_share=0.1)


async def burst(it, count, length, **body):
    """`count` different prompts of `length` tokens at once; their answers."""
    asks = (it.chat(f"{i} " + "x" * length, max_tokens=4, **body) for i in range(count))
    return await asyncio.gather(*asks)


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_toll_with_hopeless_last_serves_a_burst(launch, attachment):
    changes = {"router__policy": "toll", "router__ordering": HOPELESS_LAST}
    async with launch(router__attachment=attachment, **changes, decode__workers=2) as it:
        alone = await it.chat("0 " + "x" * 6000, max_tokens=4)
        answers = await burst(it, 16, 6000)
        assert [answer["status"] for answer in answers] == [200] * 16
        assert answers[0]["choices"] == alone["choices"]
        rows = it.decisions()
        assert len(rows) == 17
        assert {row["reason"] for row in rows} <= {"toll_local", "toll_remote"}
        assert any(row["reason"] == "toll_remote" for row in rows)
        # What is local runs in chunks that the decode batch bears: the emulated engine says that
        # it follows a schedule.
        assert all(row["chunks"] for row in rows if row["place"] == "local")
        text = await it.router_metrics()
        assert 'policy="toll"' in text
        assert "dynamo_equilibrium_queue_waiting 0.0" in text


async def test_deflected_prefills_run_by_their_chunk_schedule(launch):
    changes = {"router__policy": "deflect", "decode__workers": 2}
    async with launch(router__attachment="relay", **changes) as it:
        alone = await it.chat("0 " + "x" * 3000, max_tokens=4)
        answers = await burst(it, 16, 3000)
        assert [answer["status"] for answer in answers] == [200] * 16
        assert answers[0]["choices"] == alone["choices"]
        rows = it.decisions()
        deflected = [row for row in rows if row["reason"] == "deflected"]
        assert deflected
        assert all(sum(row["chunks"]) >= row["prompt_tokens"] for row in deflected)


async def test_hopeless_prefills_are_refused_if_so_configured(launch):
    ordering = HOPELESS_LAST.model_copy(update={"reject": True})
    changes = {"router__policy": "always_remote", "router__ordering": ordering}
    async with launch(router__attachment="relay", **changes) as it:
        # Far more than one prefill worker computes within the limit of a second.
        answers = await burst(it, 40, 8000)
        statuses = [answer["status"] for answer in answers]
        rows = it.decisions()
        refused = [row for row in rows if row["reason"] == "rejected"]
        assert set(statuses) == {200, 529}
        assert len(refused) == sum(status != 200 for status in statuses) > 0
        assert all(row["outcome"] == "rejected" for row in refused)
        assert (await it.chat("still here"))["status"] == 200
