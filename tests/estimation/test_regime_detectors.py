# SPDX-License-Identifier: Apache-2.0
"""The default detector and the paper's rule, sample by sample."""

import pytest
from regime_kit import sample, verdicts

from controller.estimation.regime.cusum import CusumParams
from controller.estimation.regime.hysteresis import Agreement, Held, held_after, verdict
from controller.estimation.regime.paper_rule import PaperParams, PaperState
from controller.estimation.regime.paper_rule import step as paper_step
from controller.estimation.regime.tracker import overall
from controller.estimation.regime.values import Regime, RegimeReason, Verdict
from controller.estimation.roster import Role

pytestmark = pytest.mark.unit


def regimes(samples, **params):
    return [each.regime for each in verdicts(samples, CusumParams(**params))]


def overload(first, count, rate=20.0):
    """`rate` arrive and 10 are served a second, from period `first` on."""
    return [
        sample(first + n, arrived=rate, backlog=5 * (rate - 10) * (n + 1),
               age=0.5 * (rate - 10) * (n + 1))
        for n in range(count)
    ]  # fmt: skip


def test_a_pool_that_keeps_up_is_below_after_the_least_samples():
    assert regimes([sample(n) for n in range(4)]) == [Regime.UNKNOWN, *[Regime.BELOW] * 3]


def test_work_that_piles_up_is_a_transition_at_once_when_it_is_sure_and_saturation_next():
    found = regimes([*[sample(n) for n in range(4)], *overload(4, 4)])
    assert found[4:] == [Regime.TRANSITION, Regime.TRANSITION, *[Regime.SATURATED] * 2]


def test_a_slow_overload_needs_two_samples():
    slow = [sample(4 + n, arrived=12.5, backlog=10 + 12.5 * n, age=1.1 + 0.1 * n) for n in range(3)]
    found = regimes([*[sample(n) for n in range(4)], *slow])
    assert found[4:] == [Regime.BELOW, Regime.TRANSITION, Regime.TRANSITION]


def test_an_old_queue_without_a_pile_is_no_transition():
    old = [sample(n, age=5.0, backlog=2) for n in range(8)]
    assert set(regimes(old)[2:]) == {Regime.BELOW}


def test_two_requests_at_a_low_rate_are_not_a_pile():
    # By Little's law they wait 10 s; a worker takes 0.1 s for one.
    few = [sample(n, arrived=0.2 + 0.4 * (n == 4), served=0.2, backlog=2, age=10) for n in range(9)]
    assert set(regimes(few)[2:]) == {Regime.BELOW}


def test_it_holds_until_the_queue_has_gone():
    quiet = [sample(8 + n, age=a) for n, a in enumerate((3, 0.8, 0.7, 0.4, 0.4))]
    found = regimes([*[sample(n) for n in range(4)], *overload(4, 4), *quiet])
    assert found[8] is Regime.SATURATED
    assert found[-1] is Regime.BELOW
    assert found[10] is not Regime.BELOW


def test_nothing_served_with_a_queue_is_saturated():
    stuck = [sample(n, arrived=5, served=0, backlog=25 * n, age=5.0 * n) for n in range(4, 8)]
    said = verdicts([*[sample(n) for n in range(4)], *stuck])
    assert said[-1].regime is Regime.SATURATED
    assert said[-1].reason is RegimeReason.NOTHING_SERVED


@pytest.mark.parametrize("lost", [{"arrived": None}, {"backlog": None, "age": None}])
def test_an_unknown_signal_is_unknown_at_once_and_what_piled_up_is_kept(lost):
    before = [*[sample(n) for n in range(4)], *overload(4, 2)]
    found = regimes([*before, sample(6, **lost), *overload(7, 1)])
    assert found[6] is Regime.UNKNOWN
    assert found[7] is not Regime.BELOW


def test_service_that_is_not_counted_is_what_did_not_stay():
    growing = [sample(n, arrived=20, served=None, backlog=50.0 * n, age=None) for n in range(8)]
    assert regimes(growing)[-1] is Regime.SATURATED
    steady = [sample(n, arrived=20, served=None, backlog=2.0, age=None) for n in range(8)]
    assert regimes(steady)[-1] is Regime.BELOW


def test_idle_is_a_confirmed_zero_and_needs_three_of_them():
    idle = {"arrived": 0.0, "served": 0.0, "backlog": 0.0, "age": 0.0}
    work = [sample(n) for n in range(3)]
    found = regimes([*work, *(sample(n, **idle) for n in range(3, 7))])
    assert found[3:] == [Regime.BELOW, Regime.BELOW, Regime.IDLE, Regime.IDLE]
    blind = sample(3, **(idle | {"backlog": None}))
    assert regimes([*work, blind])[-1] is Regime.UNKNOWN


def test_given_thresholds_replace_the_learnt_ones():
    waits = [sample(n, age=1.0 if n > 4 else 0.1, backlog=30,
                    arrived=20 if n > 4 else 10) for n in range(9)]  # fmt: skip
    assert regimes(waits, transition_s=0.9, saturated_s=30.0)[-1] is Regime.TRANSITION
    assert regimes(waits, transition_s=5.0, saturated_s=30.0)[-1] is Regime.BELOW


def test_confidence_falls_while_samples_disagree():
    needs = Agreement(rise=3)
    state = held_after(Held(Regime.BELOW), Regime.TRANSITION, RegimeReason.WORK_PILES_UP, needs)
    assert verdict(state, needs).regime is Regime.BELOW
    assert verdict(state, needs).confidence == pytest.approx(0.75)
    assert verdict(Held(Regime.BELOW), needs).confidence == 1.0


def test_the_papers_rule_switches_after_three_agreeing_polls_of_its_ewma():
    params = PaperParams(theta1=10, theta2=100)
    state, said = PaperState(), []
    for p99_s in (0.1, 0.1, 5.0, 5.0, 5.0, 5.0, None, 300.0, 300.0, 300.0):
        state, found = paper_step(state, p99_s, 0.1, params)
        said.append(found.regime)
    assert said[:5] == [Regime.BELOW] * 4 + [Regime.TRANSITION]
    assert said[6] is Regime.TRANSITION  # no new sample: nothing moves
    assert said[-1] is Regime.SATURATED
    assert paper_step(PaperState(), None, 0.1, params)[1].regime is Regime.UNKNOWN


def test_the_whole_is_as_bad_as_its_worst_pool_and_unknown_if_one_is_that_could_be_worse():
    below = Verdict(Regime.BELOW, RegimeReason.WORK_KEEPS_UP, 0.9)
    hard = Verdict(Regime.SATURATED, RegimeReason.WAIT_TOO_LONG, 1.0)
    unknown = Verdict(Regime.UNKNOWN, RegimeReason.SIGNAL_UNKNOWN, 0.0)
    none = Verdict(Regime.UNKNOWN, RegimeReason.NO_POOL, 0.0)
    idle = Verdict(Regime.IDLE, RegimeReason.NO_TRAFFIC, 1.0)
    pair = (Role.PREFILL, Role.DECODE)
    assert overall(dict(zip(pair, (below, hard), strict=True))) is hard
    assert overall(dict(zip(pair, (unknown, hard), strict=True))) is hard
    assert overall(dict(zip(pair, (unknown, below), strict=True))) is unknown
    assert overall(dict(zip(pair, (none, below), strict=True))).regime is Regime.BELOW
    assert overall(dict(zip(pair, (idle, idle), strict=True))).regime is Regime.IDLE
    assert overall(dict(zip(pair, (none, none), strict=True))).reason is RegimeReason.NO_POOL
