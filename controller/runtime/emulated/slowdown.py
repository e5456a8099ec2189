# SPDX-License-Identifier: Apache-2.0
"""Slowing an emulated worker down, or speeding it up again, while it serves.

For tests and tools, from outside the process, over the worker's side channel (see loads.py): what
a throttled GPU or a noisy neighbour does to a real one. Transfers keep their speed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from controller.costs.model import CostModel
from controller.runtime.emulated.side_channel import Peer, SideChannelClient, SideChannelError


class SlowableCosts:
    """A `CostModel` whose computing times are multiplied by `factor`, from the next step on."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self.factor = 1.0

    def step_s(self, batch: int, context: int, chunk: int, chunk_pairs: float) -> float:
        return self.factor * self._costs.step_s(batch, context, chunk, chunk_pairs)

    def prefill_s(self, history: int, increment: int) -> float:
        return self.factor * self._costs.prefill_s(history, increment)

    def kv_transfer_s(self, tokens: int) -> float:
        return self._costs.kv_transfer_s(tokens)

    def slow(self, factor: object) -> str | None:
        """Set the factor; why not, or None."""
        if not isinstance(factor, (int, float)) or not math.isfinite(factor) or factor <= 0:
            return f"factor {factor!r}: expected a number above 0"
        self.factor = float(factor)
        return None


async def set_slowdown(run_dir: Path, name: str, factor: float) -> None:
    """Multiply the computing times of a worker (`prefill-0`) by `factor`, on top of its config.

    Raises SideChannelError when the worker does not answer or refuses.
    """
    facts = json.loads((run_dir / "workers" / f"{name}.json").read_text(encoding="utf-8"))
    channel = facts["side_channel"]
    message = {"op": "slow", "engine_id": channel["engine_id"], "factor": factor}
    client = SideChannelClient()
    try:
        answer = await client.call(Peer(channel["host"], channel["port"]), message)
    finally:
        client.close()
    if not answer["ok"]:
        raise SideChannelError(answer["error"])
