# SPDX-License-Identifier: Apache-2.0
"""Emulated workers against each other over real side channels, without Dynamo.

Times are compared in emulated seconds of the engine law (step ends), so a busy machine does
not make these tests fail; the clock runs 20 times faster than the wall.
"""

import asyncio
import contextlib
from random import Random

import pytest

from controller.engine import EngineSpec
from controller.runtime.clock import Clock
from controller.runtime.emulated.handler import Handler
from controller.runtime.emulated.side_channel import SideChannelClient, SideChannelServer
from controller.runtime.emulated.worker import EmulatedWorker

pytestmark = pytest.mark.integration

VOCABULARY = tuple(range(97, 123))
BYPASS = "x-bypass-remote-prefill"


class FakeContext:
    def __init__(self, name="c"):
        self._name = name
        self.stop = asyncio.Event()

    def id(self):
        return self._name

    def is_stopped(self):
        return self.stop.is_set()

    def async_killed_or_stopped(self):
        return asyncio.ensure_future(self.stop.wait())


class NoPrompts:
    def note_prompt(self, request_id, token_ids): ...

    def forget_prompt(self, request_id): ...


class Node:
    """One worker with its handler and loop."""

    def __init__(self, role, costs, server, client, peer, **spec):
        self.steps = []
        values = {
            "block_size": 16,
            "num_blocks": 400,
            "max_num_batched_tokens": 512,
            "max_num_seqs": 64,
        } | spec
        self.worker = EmulatedWorker(
            f"{role}-{id(self)}",
            EngineSpec(**values),
            costs,
            Clock(0.05),
            client,
            on_step=self.steps.append,
        )
        server.attach(self.worker.engine_id, self.worker.answer)
        self.handler = Handler(self.worker, role, 16, 8192, peer, VOCABULARY, NoPrompts())
        self.task = asyncio.create_task(self.worker.run())

    async def ask(self, tokens, max_tokens=4, context=None, **request):
        body = {"token_ids": tokens, "stop_conditions": {"max_tokens": max_tokens}} | request
        context = context or FakeContext()
        return [c async for c in self.handler.generate(body, context)]


@contextlib.asynccontextmanager
async def cluster(costs, **decode_spec):
    server, client = SideChannelServer(), SideChannelClient()
    peer = await server.start()
    prefill_spec = decode_spec.pop("prefill", {})
    nodes = [
        Node("prefill", costs, server, client, peer, **prefill_spec),
        Node("decode", costs, server, client, peer, **decode_spec),
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.task.cancel()
        client.close()
        server.close()


def text(chunks):
    return [t for chunk in chunks for t in chunk["token_ids"]]


async def handed_over(prefill, tokens):
    chunks = await prefill.ask(tokens, max_tokens=1)
    return {"disaggregated_params": chunks[-1]["disaggregated_params"]}


async def test_local_and_remote_prefill_give_the_same_tokens_and_free_every_block(unit_costs):
    async with cluster(unit_costs) as (prefill, decode):
        prompt = list(range(100, 300))
        local = await decode.ask(prompt, 20)
        result = await handed_over(prefill, prompt)
        assert prefill.worker.load.pinned_requests == 1
        remote = await decode.ask(prompt, 20, prefill_result=result)
        assert text(local) == text(remote) and len(text(local)) == 20
        assert remote[-1]["finish_reason"] == "length"
        assert prefill.worker.load.pinned_requests == 0
        for node in (prefill, decode):
            assert node.worker.load.free_blocks == 400


async def test_another_prompts_kv_changes_the_answer(unit_costs):
    async with cluster(unit_costs, prefix_cache=False) as (prefill, decode):
        prompt, other = list(range(100, 300)), list(range(101, 301))
        right = await decode.ask(prompt, 20)
        wrong = await decode.ask(prompt, 20, prefill_result=await handed_over(prefill, other))
        assert text(right) != text(wrong)


async def test_a_late_hand_over_reads_what_others_wrote_meanwhile(unit_costs):
    spec = {"num_blocks": 20, "kv_lease_s": 5.0, "prefix_cache": False}
    async with cluster(unit_costs, prefix_cache=False, prefill=spec) as (prefill, decode):
        prompt = list(range(100, 300))
        right = await decode.ask(prompt, 20)
        result = await handed_over(prefill, prompt)
        await asyncio.sleep(0.05 * 5.5)  # the lease ends
        await handed_over(prefill, list(range(250)))  # reuses the blocks
        late = await decode.ask(prompt, 20, prefill_result=result)
        assert text(late) != text(right)
        assert late[-1]["finish_reason"] == "length"  # and nobody says so: handover.md rule 1


async def test_a_decode_leg_that_is_cancelled_at_once_frees_the_pinned_blocks(unit_costs):
    async with cluster(unit_costs) as (prefill, decode):
        result = await handed_over(prefill, list(range(100, 300)))
        context = FakeContext()
        leg = asyncio.create_task(
            decode.ask(
                list(range(100, 300)), 50, context, prefill_result=result, annotations=[BYPASS]
            )
        )
        await asyncio.sleep(0)
        context.stop.set()
        await leg
        await asyncio.sleep(0.1)
        assert prefill.worker.load.pinned_requests == 0
        assert decode.worker.load.free_blocks == 400


async def test_a_dead_prefill_worker_is_an_error_not_a_wrong_answer(unit_costs):
    async with cluster(unit_costs) as (prefill, decode):
        result = await handed_over(prefill, list(range(100, 300)))
        transfer = result["disaggregated_params"]["kv_transfer_params"]
        transfer["remote_port"] = 1  # nobody listens there
        chunks = await decode.ask(list(range(100, 300)), 5, prefill_result=result)
        assert text(chunks) == []
        assert chunks[-1]["finish_reason"].startswith("error")
        assert decode.worker.load.free_blocks == 400


@pytest.mark.parametrize(
    ("annotations", "stops_before_first_token"), [([BYPASS], True), ([], False)]
)
async def test_without_the_bypass_annotation_an_abort_waits_for_the_first_token(
    unit_costs, annotations, stops_before_first_token
):
    async with cluster(unit_costs) as (_, decode):
        context = FakeContext()
        leg = asyncio.create_task(
            decode.ask(list(range(4000)), 50, context, annotations=annotations)
        )
        await asyncio.sleep(0.02)
        context.stop.set()
        await leg
        computed = sum(record.step.prefill_tokens for record in decode.steps)
        assert (computed < 4000) is stops_before_first_token
        assert decode.worker.load.free_blocks == 400


async def gaps_of_a_decode_beside_a_prefill(costs, charge):
    """Step durations (emulated) while one stream decodes and a 2,000-token prompt prefills."""
    async with cluster(costs, charge_prefill=charge) as (_, decode):
        stream = asyncio.create_task(decode.ask(list(range(50)), 60))
        while not decode.steps:
            await asyncio.sleep(0.001)
        await decode.ask(list(range(2000)), 1)
        await stream
        return [r.step.duration_s for r in decode.steps if r.step.decode_requests]


async def test_a_local_prefill_slows_the_running_decodes_and_free_ones_would_show(unit_costs):
    """The comparison stands or falls with this cost: the stock mocker has none."""
    charged = await gaps_of_a_decode_beside_a_prefill(unit_costs, True)
    free = await gaps_of_a_decode_beside_a_prefill(unit_costs, False)
    # 2,000 tokens at 1 ms beside a decode of 11 ms a step.
    assert sum(charged) > sum(free) + 1.5
    assert max(charged) > 0.4
    assert max(free) == pytest.approx(0.011)


async def test_choices_of_one_request_come_under_their_index(unit_costs):
    async with cluster(unit_costs) as (_, decode):
        chunks = await decode.ask(list(range(100)), 6, sampling_options={"n": 3})
        by_index = {
            i: [t for c in chunks if c["index"] == i for t in c["token_ids"]] for i in range(3)
        }
        assert [len(tokens) for tokens in by_index.values()] == [6, 6, 6]
        assert len({tuple(tokens) for tokens in by_index.values()}) == 3


async def test_a_prompt_beyond_the_context_is_refused(unit_costs):
    async with cluster(unit_costs) as (_, decode):
        with pytest.raises(ValueError, match="context length 8192"):
            await decode.ask(list(range(9000)))
        with pytest.raises(ValueError, match="token_ids"):
            await decode.ask([])


@pytest.mark.parametrize("seed", range(4))
async def test_many_cancelled_requests_leak_no_block(unit_costs, seed):
    rng = Random(seed)
    async with cluster(unit_costs) as (prefill, decode):

        async def one():
            tokens = list(range(rng.randrange(1, 900)))
            context = FakeContext(str(rng.random()))
            asyncio.get_running_loop().call_later(rng.random() * 0.15, context.stop.set)
            with contextlib.suppress(IndexError, KeyError):
                result = None
                if rng.random() < 0.7:
                    chunks = await prefill.ask(tokens, 1, context)
                    if not chunks:
                        return
                    params = chunks[-1].get("disaggregated_params")
                    result = {"disaggregated_params": params}
                    context = FakeContext(context.id())
                    asyncio.get_running_loop().call_later(rng.random() * 0.1, context.stop.set)
                await decode.ask(tokens, 20, context, prefill_result=result)

        await asyncio.gather(*(one() for _ in range(150)))
        await asyncio.sleep(0.2)
        for node in (prefill, decode):
            load = node.worker.load
            assert load.pinned_requests == load.running_requests == load.waiting_requests == 0
            assert load.free_blocks == 400
