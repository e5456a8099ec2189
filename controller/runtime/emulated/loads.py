# SPDX-License-Identifier: Apache-2.0
"""What the emulated engines of a run hold right now: running requests, pinned blocks, free blocks.

For tests and tools, from outside the processes: each worker names its side channel in
`<run folder>/workers/<name>.json` and answers the operation `load` there with its EngineLoad.
No Dynamo is involved, so asking neither registers nor disturbs anything.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from controller.engine import EngineLoad
from controller.runtime.emulated.side_channel import Peer, SideChannelClient, SideChannelError

_POLL_S = 0.05


async def engine_loads(run_dir: Path) -> dict[str, EngineLoad]:
    """The load of every emulated worker that answers, by name (`prefill-0`, `decode-1`)."""
    client = SideChannelClient()
    loads: dict[str, EngineLoad] = {}
    try:
        for path in sorted((run_dir / "workers").glob("*.json")):
            channel = json.loads(path.read_text(encoding="utf-8"))["side_channel"]
            peer = Peer(channel["host"], channel["port"])
            message = {"op": "load", "engine_id": channel["engine_id"]}
            try:
                answer = await client.call(peer, message)
            except SideChannelError:
                continue  # that worker has died
            if answer["ok"]:
                loads[path.stem] = EngineLoad(**answer["load"])
    finally:
        client.close()
    return loads


async def wait_for_loads(
    run_dir: Path, condition: Callable[[EngineLoad], bool], timeout_s: float = 5.0
) -> dict[str, EngineLoad]:
    """Poll until `condition` holds for every worker that answers, or the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        loads = await engine_loads(run_dir)
        if all(map(condition, loads.values())) or time.monotonic() > deadline:
            return loads
        await asyncio.sleep(_POLL_S)
