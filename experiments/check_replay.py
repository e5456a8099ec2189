# SPDX-License-Identifier: Apache-2.0
"""Our simulator against Dynamo's own offline replay (`dynamo.replay`, ai-dynamo 1.4.2).

    python experiments/check_replay.py [--seeds 5] [--share 1.0]

Both are given the same step times (replay_dynamo.py), the same requests, always remote prefill and
round robin, without contention between transfers. Per case (replay_cases.py) and metric the last
line, JSON, has the relative error (ours - theirs)/theirs as [mean over seeds, half-width of a 95 %
interval]: TTFT over requests, gaps between tokens (ITL) over all tokens. `--share` scales the
number of sessions. Half a minute a seed.

What was learnt about the replay's law, from runs and its public source, and what we do about it:

- *Alike.* A step's prompt tokens are summed over its requests and timed together; a step takes up
  to `max_num_batched_tokens` of them, first come first served. Prefix hits are whole blocks, never
  the whole prompt. The decode side needs blocks for the whole prompt, computes none of it and
  joins the request at its next step, whose end is the first token. All answers' tokens come from
  the decode side.
- *Prefill results wait.* A prefill worker with more than one seat (`max_num_seqs`) hands a finished
  prompt over only in a step that takes in no other prompt: under load results lie until the queue
  is empty. vLLM hands over at the end of each step, and so do we. With one seat the replay does,
  too: prefill workers have one seat here, on both sides. `held_back` in the summary is the replay's
  mean TTFT with 256 seats over that with one (more seats could only make it smaller).
- *When the transfer starts.* There it starts as soon as the prompt is computed, here (as in vLLM)
  when the decode worker composes its next step. A decode step is short beside a prefill: part of
  what remains.
- *KV of a decode step.* They time it by the distinct blocks held, in whole blocks; we by the sum
  of contexts. So that blocks which two prompts share are read twice, as a GPU does, the decode side
  runs without prefix cache here; whole blocks are a matter of the table (`decode_tables`). Blocks
  reserved for a transfer count there too, before anybody reads them: about 0.1 % of ITL.
- *Same step.* A prompt that is computed in a step can there be hit by another one of the same step
  (vLLM's scheduler counts so too); we offer blocks when they are there. One seat: no such step.
- *Binding.* They choose the decode worker when the prompt is computed, we when the request
  arrives; and a session keeps no worker here either (each round is a session of its own).
- `sessions` has one worker of each kind: with two, microseconds decide which of two rounds arrives
  first, round robin sends them elsewhere, and prefix hits differ from then on by chance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # also as a script

from analysis.intervals import mean_interval
from controller.engine import EngineSpec
from controller.errors import UserError
from controller.simulation.cluster import (
    ClusterSpec,
    SimOptions,
    SimResult,
    Worker,
    simulate,
)
from controller.simulation.cluster.token_gaps import token_gaps
from controller.simulation.workloads.workload import Workload
from experiments.replay_cases import BLOCK, CASES, Case, profile
from experiments.replay_dynamo import (
    ReplaySpec,
    StepProfile,
    decode_tables,
    prefill_tables,
    run_replay,
    write_trace,
)

BUDGET, SEATS, BLOCKS = 8192, 256, 16_384
METRICS = ("mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="workloads a case")
    parser.add_argument("--share", type=float, default=1.0, help="share of the sessions, above 0")
    args = parser.parse_args()
    if args.seeds < 1 or not args.share > 0:
        print("error: --seeds must be at least 1, --share above 0", file=sys.stderr)
        return 2
    try:
        summary = compare(args.seeds, args.share)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


def compare(seeds: int, share: float) -> dict[str, Any]:
    """All cases: {case: {metric: [mean error, half-width]}, "held_back": ratio}."""
    times = profile()
    summary: dict[str, Any] = {}
    for name, case in CASES.items():
        runs = [errors(name, case, times, seed, share) for seed in range(seeds)]
        summary[name] = {metric: mean_interval([run[metric] for run in runs]) for metric in METRICS}
    summary["held_back"] = held_back(times, share)
    return summary


def errors(name: str, case: Case, times: StepProfile, seed: int, share: float) -> dict[str, float]:
    """Relative errors of one workload."""
    workload = draw(case, seed, share)
    spec = cluster_spec(case, prefill_seats=1)
    theirs = replayed(workload, times, spec)
    ours = measured(simulated(workload, times, spec))
    for metric in METRICS:
        print(
            f"{name:9} seed {seed} {metric:12} ours {ours[metric]:9.3f}  "
            f"theirs {theirs[metric]:9.3f}  {ours[metric] / theirs[metric] - 1:+8.3%}",
            flush=True,
        )
    return {metric: ours[metric] / theirs[metric] - 1 for metric in METRICS}


def held_back(times: StepProfile, share: float) -> float:
    """The replay's mean TTFT with many prefill seats over that with one."""
    case = CASES["steady"]
    workload = draw(case, 0, share)
    many, one = (
        replayed(workload, times, cluster_spec(case, prefill_seats=seats))["mean_ttft_ms"]
        for seats in (SEATS, 1)
    )
    return float(many / one)


def draw(case: Case, seed: int, share: float) -> Workload:
    """A case's workload; its first request arrives at 0, as the replay shifts it."""
    workload = case.draw(np.random.default_rng(seed), max(2, int(case.sessions * share)))
    return replace(workload, arrival_s=workload.arrival_s - workload.arrival_s[0])


def cluster_spec(case: Case, prefill_seats: int) -> ReplaySpec:
    """The case's cluster."""
    return ReplaySpec(case.prefill, case.decode, BLOCK, BLOCKS, BUDGET, prefill_seats, SEATS)


def replayed(workload: Workload, times: StepProfile, spec: ReplaySpec) -> dict[str, Any]:
    """Dynamo's report."""
    with tempfile.TemporaryDirectory() as folder:
        trace, npz = Path(folder) / "trace.jsonl", Path(folder) / "profile.npz"
        write_trace(workload, trace, BLOCK)
        times.write(npz)
        report = run_replay(trace, npz, times, spec)
    if report["completed_requests"] != len(workload):
        raise UserError(f"{workload.name}: the replay did not serve every request")
    return report


def simulated(workload: Workload, times: StepProfile, spec: ReplaySpec) -> SimResult:
    """Our run of the same."""
    prefill = EngineSpec(BLOCK, spec.num_blocks, spec.max_num_batched_tokens, spec.prefill_seats)
    decode = replace(prefill, max_num_seqs=spec.decode_seats, prefix_cache=False)
    cluster = ClusterSpec(
        engines=(prefill, decode),
        costs=(
            prefill_tables(times, BUDGET),
            decode_tables(times, BUDGET, spec.decode_seats, BLOCK),
        ),
        prefill=(Worker(0, 0),) * spec.prefill,
        decode=(Worker(1, 1),) * spec.decode,
        contention=False,
    )
    each_its_own = replace(workload, session=np.arange(len(workload)))
    options = SimOptions(placement="round_robin", binding="round_robin")
    return simulate(each_its_own, cluster, options)


def measured(result: SimResult) -> dict[str, float]:
    """The metrics of our run, named as in Dynamo's report."""
    if not result.served.all() or result.state is None:
        raise UserError(f"{result.workload.name}: a request was not served")
    ttft_ms = result.ttft_s * 1e3
    gap_s, weight = token_gaps(result.state)
    return {
        "mean_ttft_ms": float(ttft_ms.mean()),
        "p99_ttft_ms": float(np.percentile(ttft_ms, 99)),
        "mean_itl_ms": float(np.average(gap_s, weights=weight)) * 1e3,
        "p99_itl_ms": weighted_quantile(gap_s, weight, 0.99) * 1e3,
    }


def weighted_quantile(values: Any, weights: Any, share: float) -> float:
    """The smallest value that at least `share` of the weight does not exceed."""
    order = np.argsort(values)
    passed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(passed, share * passed[-1])])


if __name__ == "__main__":
    sys.exit(main())
