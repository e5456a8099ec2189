# SPDX-License-Identifier: Apache-2.0
"""Whatever a driver does: no block leaks, every token exactly once, limits kept."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_kit import COSTS, good_pull, request, spec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.engine import Engine, FinishReason, Output, Pull, Step

pytestmark = pytest.mark.unit

NUM_BLOCKS, BUDGET, SEATS, LEASE_S = 12, 10, 4, 3.0


class AnyDriver(RuleBasedStateMachine):
    """Random requests, cancels, steps, pulls and releases on a tight engine."""

    @initialize(prefix_cache=st.booleans(), charge=st.booleans())
    def start(self, prefix_cache: bool, charge: bool) -> None:
        limits = spec(
            num_blocks=NUM_BLOCKS,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEATS,
            kv_lease_s=LEASE_S,
            prefix_cache=prefix_cache,
            charge_prefill=charge,
        )
        self.unit = Engine(limits, COSTS)
        self.now_s = 0.0
        self.step: Step | None = None
        self.expected: dict[str, int] = {}
        self.delivered: Counter[str] = Counter()
        self.over: set[str] = set()
        self.pulls: dict[str, Pull] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.cached: set[int] = set()

    @rule(
        prompt=st.integers(1, 30),
        output=st.integers(1, 14),
        family=st.integers(1, 3),
        leg=st.sampled_from(["whole", "whole", "hold", "pull"]),
        priority=st.integers(0, 1),
    )
    def add(self, prompt: int, output: int, family: int, leg: str, priority: int) -> None:
        request_id = f"r{len(self.expected)}"
        new = request(
            request_id,
            prompt,
            output,
            family,
            hold_kv=leg == "hold",
            pull_kv=leg == "pull",
            priority=priority,
        )
        self.unit.add(new, self.now_s)
        self.expected[request_id] = 1 if leg == "hold" else output
        self.prompts[request_id] = new.contents

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = sorted(set(self.expected) - self.over)
        if live:
            request_id = data.draw(st.sampled_from(live))
            assert self.unit.cancel(request_id, self.now_s)
            self.over.add(request_id)

    @rule()
    def toggle_step(self) -> None:
        if self.step is None:
            self._begin()
        else:
            self._finish()

    @rule(data=st.data(), fails=st.booleans())
    def end_pull(self, data: st.DataObject, fails: bool) -> None:
        if self.pulls:
            self._end_pull(data.draw(st.sampled_from(sorted(self.pulls))), fails)

    @rule(data=st.data(), renew=st.booleans())
    def touch_lease(self, data: st.DataObject, renew: bool) -> None:
        pinned = [r for r in self.expected if self.unit.pinned_blocks(r) is not None]
        if pinned:
            request_id = data.draw(st.sampled_from(pinned))
            call = self.unit.renew if renew else self.unit.release
            call(request_id, self.now_s)

    @rule(seconds=st.floats(0.0, 2.0))
    def pass_time(self, seconds: float) -> None:
        if self.step is None:
            self.now_s += seconds
            self.unit.expire(self.now_s)

    @invariant()
    def load_adds_up(self) -> None:
        if not hasattr(self, "unit"):
            return
        load = self.unit.load()
        live = len(self.expected) - len(self.over)
        counted = (
            load.waiting_requests
            + load.preempted_requests
            + load.running_requests
            + load.pulling_requests
        )
        assert counted == live
        assert load.running_requests + load.pulling_requests <= SEATS
        assert 0 <= load.free_blocks <= NUM_BLOCKS - load.pinned_blocks
        assert 0 <= load.decoding_requests <= load.running_requests
        assert load.decode_kv_tokens >= 0
        assert load.waiting_tokens >= load.waiting_requests
        assert load.preempted_kv_tokens >= load.preempted_requests
        if not live:
            assert load.decode_kv_tokens == load.decoding_requests == 0
            assert load.free_blocks == NUM_BLOCKS - load.pinned_blocks
        for event in self.unit.take_cache_events():
            # Stored only what is not there, removed only what is; a parent is there before.
            assert (event.content in self.cached) != event.stored
            (self.cached.add if event.stored else self.cached.remove)(event.content)
            assert not event.stored or event.parent is None or event.parent in self.cached

    def teardown(self) -> None:
        if not hasattr(self, "unit"):
            return
        for _ in range(5000):
            if self.step is None and not self._begin():
                if len(self.over) == len(self.expected) and self.unit.next_wakeup_s() is None:
                    break
                for request_id in sorted(self.pulls):
                    self._end_pull(request_id, False)
                self.now_s = max(self.now_s, self.unit.next_wakeup_s() or 0.0)
                self.unit.expire(self.now_s)
            elif self.step is not None:
                self._finish()
        self.load_adds_up()
        load = self.unit.load()
        assert load.free_blocks == NUM_BLOCKS
        assert (load.waiting_requests, load.running_requests, load.pinned_requests) == (0, 0, 0)
        assert load.pulling_requests == load.preempted_requests == 0

    def _begin(self) -> bool:
        self.step = self.unit.begin_step(self.now_s)
        for pull in self.unit.take_pulls():
            assert pull.request_id not in self.over
            assert (pull.blocks == 0) == (pull.tokens == 0) == (pull.duration_s == 0.0)
            self.pulls[pull.request_id] = pull
        if self.step is None:
            return False
        assert self.step.start_s == self.now_s
        assert self.step.duration_s > 0.0
        assert 0 < self.step.prefill_tokens + self.step.decode_requests <= BUDGET
        assert 0 < self.step.prefill_requests + self.step.decode_requests <= SEATS
        return True

    def _finish(self) -> None:
        assert self.step is not None
        self.now_s += self.step.duration_s
        self.step = None
        outputs = self.unit.finish_step(self.now_s)
        assert len({o.request_id for o in outputs}) == len(outputs)
        for output in outputs:
            assert output.tokens == 1
            # Nothing stale was pulled, so no prompt ever holds another one's KV.
            prompt = self.prompts[output.request_id]
            assert self.unit.prompt_contents(output.request_id) == prompt
            self._take(output)

    def _end_pull(self, request_id: str, fails: bool) -> None:
        good = good_pull(self.prompts[request_id], self.pulls.pop(request_id))
        for output in self.unit.finish_pull(request_id, None if fails else good, self.now_s):
            assert output.finish is FinishReason.KV_LOAD_FAILED
            assert request_id not in self.over
            self.over.add(request_id)

    def _take(self, output: Output) -> None:
        assert output.request_id not in self.over
        self.delivered[output.request_id] += output.tokens
        done = self.delivered[output.request_id] == self.expected[output.request_id]
        assert (output.finish is FinishReason.LENGTH) == done
        if done:
            self.over.add(output.request_id)


AnyDriver.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyDriver = pytest.mark.unit(AnyDriver.TestCase)
