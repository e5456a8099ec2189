# SPDX-License-Identifier: Apache-2.0
"""Slowing a worker down while it runs, through its run folder."""

import asyncio
import json

import pytest

from controller.engine import EngineRequest, EngineSpec
from controller.runtime.clock import Clock
from controller.runtime.emulated.side_channel import (
    SideChannelClient,
    SideChannelError,
    SideChannelServer,
)
from controller.runtime.emulated.slowdown import set_slowdown
from controller.runtime.emulated.worker import EmulatedWorker

pytestmark = pytest.mark.integration

SPEC = EngineSpec(block_size=16, num_blocks=100, max_num_batched_tokens=512, max_num_seqs=8)


async def test_a_slowed_worker_s_steps_take_longer_and_its_transfers_do_not(unit_costs, tmp_path):
    channel, client, steps = SideChannelServer(), SideChannelClient(), []
    peer = await channel.start()
    worker = EmulatedWorker(
        "e", SPEC, unit_costs, Clock(0.05), client, on_step=lambda record: steps.append(record.step)
    )
    channel.attach("e", worker.answer)
    (tmp_path / "workers").mkdir()
    facts = {"side_channel": {"host": "127.0.0.1", "port": peer.port, "engine_id": "e"}}
    (tmp_path / "workers" / "decode-0.json").write_text(json.dumps(facts))
    loop = asyncio.create_task(worker.run())
    try:
        durations = []
        for number, factor in enumerate((1.0, 1.5, 1.0)):
            await set_slowdown(tmp_path, "decode-0", factor)
            request = EngineRequest(
                f"r{number}", 40, 2, tuple(range(3 * number + 1, 3 * number + 4))
            )
            assert [output.tokens async for output in worker.generate(request)] == [1, 1]
            durations.append([step.duration_s for step in steps[-2:]])
        assert durations[1] == pytest.approx([1.5 * each for each in durations[0]])
        assert durations[2] == durations[0]
        for factor in (0.0, -1.0, float("nan")):
            with pytest.raises(SideChannelError, match="above 0"):
                await set_slowdown(tmp_path, "decode-0", factor)
    finally:
        loop.cancel()
        client.close()
        channel.close()
