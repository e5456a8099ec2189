# SPDX-License-Identifier: Apache-2.0
"""Which adapters a relay offers."""

import pytest

from controller.runtime.router.loras import LoraMirror, LoraSource, in_common

pytestmark = pytest.mark.unit


def test_only_what_every_worker_has_is_offered():
    assert in_common([{"a": 1, "b": 2}, {"b": 2, "c": 3}]) == {"b": 2}
    assert in_common([{"a": 1}, {}]) == {}
    assert in_common([]) == {}


async def test_offers_follow_the_workers():
    said = []

    async def offer(name, number):
        said.append(("offer", name, number))

    async def withdraw(name):
        said.append(("withdraw", name))

    mirror = LoraMirror(offer, withdraw)
    await mirror.update([{"a": 1}, {"a": 1}])
    await mirror.update([{"a": 1}, {"a": 1}])
    await mirror.update([{"a": 1}, {"a": 1}, {}])  # a new worker that has not loaded it
    await mirror.update([{"a": 1}, {"a": 1}, {"a": 1}])
    assert said == [("offer", "a", 1), ("withdraw", "a"), ("offer", "a", 1)]


class FakeRuntime:
    """Workers 1 and 2; the second has died. Notes the path it is asked for."""

    def endpoint(self, path):
        self.path = path
        return self

    async def client(self):
        return self

    def instance_ids(self):
        return [1, 2]

    async def direct(self, request, worker_id):
        if worker_id == 2:
            raise ConnectionResetError("gone")

        async def stream():
            yield {"status": "success", "loras": {"a": 7}, "count": 1}

        return stream()


async def test_workers_are_asked_beside_generate_and_one_that_cannot_say_has_none():
    runtime = FakeRuntime()
    source = LoraSource(runtime, "ns-decode.backend.generate", runtime)
    assert await source.adapters() == [{"a": 7}, {}]
    assert runtime.path == "ns-decode.backend.list_loras"
