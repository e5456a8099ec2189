# SPDX-License-Identifier: Apache-2.0
"""Which adapters a relay offers."""

import asyncio
from types import SimpleNamespace

import pytest
from dynamo.llm import WorkerType

from controller.runtime.router import loras as module
from controller.runtime.router.loras import LoraMirror, Loras, LoraSource, anywhere, in_common

pytestmark = pytest.mark.unit


def test_only_what_every_worker_has_is_offered():
    assert in_common([{"a": 1, "b": 2}, {"b": 2, "c": 3}]) == {"b": 2}
    assert in_common([{"a": 1}, {}]) == {}
    assert in_common([]) == {}
    assert anywhere([{"a": 1}, {}, {"b": 2}]) == {"a": 1, "b": 2}


async def test_offers_follow_the_workers():
    said = []

    async def offer(name, number):
        said.append(("offer", name, number))

    async def withdraw(name):
        said.append(("withdraw", name))

    mirror = LoraMirror(offer, withdraw)
    for wanted in ({"a": 1}, {"a": 1}, {}, {"a": 1}):
        await mirror.update(wanted)
    assert said == [("offer", "a", 1), ("withdraw", "a"), ("offer", "a", 1)]


class FakeWorkers:
    """Workers of one endpoint by id: their adapters, None for one that does not answer."""

    def __init__(self, held):
        self.held = held

    async def client(self):
        return self

    def instance_ids(self):
        return list(self.held)

    async def direct(self, request, worker_id):
        if self.held[worker_id] is None:
            raise ConnectionResetError("gone")

        async def stream():
            yield {"status": "success", "loras": self.held[worker_id], "count": 1}

        return stream()


class FakeRuntime:
    """Two pools; notes the paths it is asked for."""

    def __init__(self, **pools):
        self.pools = {name: FakeWorkers(held) for name, held in pools.items()}
        self.paths = []

    def endpoint(self, path):
        self.paths.append(path)
        return self.pools["decode" if "backend" in path else "prefill"]


async def test_workers_are_asked_beside_generate_and_one_that_cannot_say_has_none():
    runtime = FakeRuntime(decode={1: {"a": 7}, 2: None})
    source = LoraSource(runtime, "ns-decode.backend.generate", runtime.pools["decode"])
    await source.ask()
    assert source.held == {1: {"a": 7}, 2: {}}
    assert runtime.paths == ["ns-decode.backend.list_loras"]


async def test_one_that_does_not_answer_now_has_what_it_had_and_one_that_left_has_nothing():
    workers = FakeWorkers({1: {"a": 7}, 2: {"a": 7}})
    source = LoraSource(FakeRuntime(decode={}), "ns.backend.generate", workers)
    source._client = workers
    await source.ask()
    workers.held = {1: None}
    await source.ask()
    assert source.held == {1: {"a": 7}}


@pytest.fixture
def loras():
    def build(decode, prefill):
        runtime = FakeRuntime(decode=decode, prefill=prefill)
        config = SimpleNamespace(
            model="m", decode_endpoint="ns.backend.generate", prefill_endpoint="p.prefill.generate"
        )
        parts = SimpleNamespace(
            runtime=runtime,
            card={"runtime_config": {"max_gpu_lora_count": 2}},
            decode_client=runtime.pools["decode"],
            prefill_client=runtime.pools["prefill"],
        )
        return Loras(config, parts)

    return build


@pytest.fixture
def said(monkeypatch):
    """What was registered (`offer`) and withdrawn, and a poll that is not waited for."""
    said = []

    def registrar(endpoint, model, card, role):
        async def offer(name, number):
            said.append(("offer", name, role["worker_type"]))

        async def withdraw(name):
            said.append(("withdraw", name))

        return offer, withdraw

    monkeypatch.setattr(module, "_registrar", registrar)
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    return said


async def follow(following, steps):
    """Let a follower poll; take the steps one by one in between."""
    task = asyncio.create_task(following)
    for step in steps:
        await asyncio.sleep(0.05)
        step()
    await asyncio.sleep(0.05)
    task.cancel()


async def test_a_relay_offers_what_every_worker_of_both_pools_has(loras, said):
    decode, prefill = {1: {"a": 7, "b": 8}}, {3: {"a": 7}}
    offering = loras(decode, prefill).offer_as_front_door(None)
    await follow(offering, [lambda: prefill.update({4: {}})])
    assert said == [("offer", "a", WorkerType.Aggregated), ("withdraw", "a")]


async def test_a_broker_withdraws_only_after_the_last_decode_worker(loras, said):
    decode, prefill = {1: {"a": 7}, 2: {"a": 7}}, {3: {"a": 7}}
    steps = [
        prefill[3].clear,  # a prefill worker unloads it
        lambda: decode.update({5: {}}),  # a decode worker comes without it
        decode[1].clear,
        decode.clear,  # every decode worker is away
    ]
    await follow(loras(decode, prefill).offer_as_prefill_worker(None), steps)
    assert said == [("offer", "a", WorkerType.Prefill)]
    said.clear()
    decode[2] = {"a": 7}
    await follow(loras(decode, prefill).offer_as_prefill_worker(None), [decode[2].clear])
    assert said == [("offer", "a", WorkerType.Prefill), ("withdraw", "a")]


async def test_an_adapters_prefills_go_to_the_workers_that_have_it(loras, said):
    ours = loras({1: {"a": 7, "b": 8}}, {3: {"a": 7}, 4: {}})
    assert ours.holders("a") is None  # nothing is known yet
    await follow(ours.offer_as_prefill_worker(None), [])
    assert ours.holders("a") == {3}
    assert ours.holders("b") == frozenset()
    assert ours.holders("m") is None
