# SPDX-License-Identifier: Apache-2.0
"""Asking the emulated engines of a run what they hold, through its folder."""

import asyncio
import json

import pytest

from controller.engine import EngineRequest, EngineSpec
from controller.runtime.clock import Clock
from controller.runtime.emulated.loads import engine_loads, wait_for_loads
from controller.runtime.emulated.side_channel import SideChannelClient, SideChannelServer
from controller.runtime.emulated.worker import EmulatedWorker

pytestmark = pytest.mark.integration

SPEC = EngineSpec(block_size=16, num_blocks=100, max_num_batched_tokens=512, max_num_seqs=8)


def write_facts(run_dir, name, port, engine_id="e"):
    folder = run_dir / "workers"
    folder.mkdir(exist_ok=True)
    channel = {"host": "127.0.0.1", "port": port, "engine_id": engine_id}
    (folder / f"{name}.json").write_text(json.dumps({"side_channel": channel}))


async def test_pinned_blocks_are_seen_and_the_dead_are_left_out(unit_costs, tmp_path):
    channel, client = SideChannelServer(), SideChannelClient()
    peer = await channel.start()
    worker = EmulatedWorker("e", SPEC, unit_costs, Clock(0.05), client)
    channel.attach("e", worker.answer)
    write_facts(tmp_path, "prefill-0", peer.port)
    write_facts(tmp_path, "prefill-1", 1)
    loop = asyncio.create_task(worker.run())
    request = EngineRequest("r", 40, 1, (1, 2, 3), hold_kv=True)
    assert [output.tokens async for output in worker.generate(request)] == [1]
    loads = await engine_loads(tmp_path)
    assert {name: load.pinned_blocks for name, load in loads.items()} == {"prefill-0": 3}
    # The lease of 30 emulated seconds ends it.
    freed = await wait_for_loads(tmp_path, lambda load: load.pinned_blocks == 0)
    assert freed["prefill-0"].free_blocks == 100
    loop.cancel()
    client.close()
    channel.close()
