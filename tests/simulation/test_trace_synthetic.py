# SPDX-License-Identifier: Apache-2.0
"""The synthetic workload, its generator script and the file that ships."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from controller.simulation.lengths import Lengths
from controller.simulation.synthetic import CalmThenBurst, phase_load, synthesize
from controller.simulation.trace_formats import parse_trace
from controller.simulation.traces import TraceError, arrival_s

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "dynamo_configs" / "traces" / "calm_then_burst.jsonl"


def test_the_same_seed_draws_the_same_trace() -> None:
    assert synthesize(CalmThenBurst(), 5) == synthesize(CalmThenBurst(), 5)
    assert synthesize(CalmThenBurst(), 5) != synthesize(CalmThenBurst(), 6)


def test_lengths_rounds_and_think_times_stay_in_their_bounds() -> None:
    law = CalmThenBurst(calm_s=60)
    trace = synthesize(law, 11)
    firsts = [session[0] for session in trace.sessions]
    laters = [request for session in trace.sessions for request in session[1:]]
    assert all(200 <= request.new_tokens <= 6000 for request in firsts)
    assert all(50 <= request.new_tokens <= 1000 for request in laters)
    assert all(8 <= request.output_tokens <= 200 for request in trace.requests())
    assert all(0.5 <= request.think_s <= 2.0 for request in laters)
    assert {len(session) for session in trace.sessions} == {1, 2, 3}
    share = sum(len(session) > 1 for session in trace.sessions) / len(trace.sessions)
    assert share == pytest.approx(0.3, abs=0.08)
    assert all(0 <= arrival_s(session) < 85 for session in trace.sessions)


def test_a_share_of_zero_has_no_later_rounds() -> None:
    trace = synthesize(CalmThenBurst(multi_round_share=0.0), 1)
    assert all(len(session) == 1 for session in trace.sessions)


@pytest.mark.parametrize(
    "wrong",
    [
        {"calm_rate": -1.0},
        {"calm_s": float("nan")},
        {"multi_round_share": 1.5},
        {"think_low_s": 3.0},
    ],
)
def test_an_impossible_law_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TraceError):
        CalmThenBurst(**wrong)


def test_a_law_without_sessions_is_refused() -> None:
    with pytest.raises(TraceError, match="no session arrives"):
        synthesize(CalmThenBurst(calm_rate=0, burst_rate=0), 0)


def test_lognormal_mean_is_the_mean_of_the_law() -> None:
    import random

    rng = random.Random(0)
    wide = Lengths(mean=2000, sigma=0.6, low=1, high=10**6)
    draws = [wide.draw(rng) for _ in range(20_000)]
    assert sum(draws) / len(draws) == pytest.approx(2000, rel=0.03)


def test_the_shipped_trace_is_small_calm_and_then_too_much_for_one_worker() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    assert len(text.encode()) < 150_000
    trace = parse_trace(text, str(SHIPPED))
    calm, burst = phase_load(trace, 0, 20), phase_load(trace, 20, 40)
    # One emulated prefill worker computes about 17,000 tokens/s. Histories of later rounds are
    # mostly in its prefix cache, so new tokens are what it has to compute at least.
    assert calm.prompt_tokens_per_s < 14_000
    assert burst.new_tokens_per_s > 17_000


def test_the_script_reproduces_the_shipped_trace(tmp_path: Path) -> None:
    out = tmp_path / "calm_then_burst.jsonl"
    done = subprocess.run(
        [sys.executable, str(ROOT / "experiments" / "make_trace.py"), "--out", str(out)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert out.read_bytes() == SHIPPED.read_bytes()
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["bytes"] == SHIPPED.stat().st_size
    assert summary["phases"]["burst"]["sessions"] > summary["phases"]["calm"]["sessions"]
