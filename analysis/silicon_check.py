# SPDX-License-Identifier: Apache-2.0
"""From a measured server and its profile to a prediction, and what such predictions leave out.

Pure. Owns: which law an engine follows, the rounds that a benchmark is taken to send, the groups by
which errors are shown. Does not own: the laws (steady_state), factors and errors (corrections).
"""

from __future__ import annotations

from analysis.corrections import Prediction
from analysis.cost_report import Group
from analysis.silicon import Point
from analysis.steady_state import Discipline, Load, Server, steady_state
from controller.costs.profile import Profile

LEFT_OUT = """\
What the predictions leave out, and where it shows:
- TTFT holds queueing at the given concurrency. The law knows who waits for KV and for prompts of
  the first round, not how arrivals bunch, nor the host's time for a request: factors of 1 to 2.6.
- Steps with prompt tokens run without CUDA graphs: small models on many GPUs take longer than
  their operators (Llama-3.1-8B on four or eight H100, up to a third).
- All-reduce of vLLM's tables jumps between 8 and 16 tokens on eight GPUs, the servers do not:
  20 to 44 % too long at 16 requests.
- Llama-3.1-8B FP8 (vLLM, H200) and Qwen3-32B FP8 (vLLM, H100): at the stated concurrency the
  measured rate of prompts would take up to 59 % of the GPUs' 8-bit peak. Probably prefixes were
  shared or the concurrency was not reached.
- Precisions and models of one system and engine share a factor that fits none of them fully."""
DISCIPLINES = {"sglang": Discipline.PREFILL_FIRST}
ROUNDS = 10.0
"""Requests a benchmark sends for each it keeps at work: usual, but the table does not say."""


def predict(point: Point, profile: Profile) -> Prediction:
    """The steady state of the point's load on the profile's worker."""
    engine = profile.engine
    blocks = engine.num_gpu_blocks
    server = Server(
        cost=profile.cost_model(),
        discipline=DISCIPLINES.get(engine.name, Discipline.INTERLEAVED),
        budget=engine.max_num_batched_tokens,
        kv_tokens=None if blocks is None else blocks * engine.block_size,
    )
    steady = steady_state(server, Load(point.concurrency, point.isl, point.osl, ROUNDS))
    return Prediction(point, profile.name, 1e3 * steady.tpot_s, 1e3 * steady.ttft_s, steady.running)


def by_server(each: Prediction) -> Group:
    """System, engine, model and precision."""
    point = each.point
    return point.system, point.backend, point.model, point.precision


def by_regime(each: Prediction) -> Group:
    """What rules the load: waiting for KV, prompts between decode steps, or plain decoding."""
    point = each.point
    if each.running < 0.95 * point.concurrency:
        return ("requests wait for KV or prompt budget",)
    prompts = point.concurrency * point.isl / point.osl
    size = "over 256" if prompts > 256 else "64 to 256" if prompts > 64 else "under 64"
    return (f"{size} prompt tokens a step",)
