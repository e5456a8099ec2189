# SPDX-License-Identifier: Apache-2.0
"""Windows over scrapes: resets, absence, staleness, quantiles that are cut off."""

import pytest
from estimation_kit import histogram, look, texts, window

from controller.estimation.metric_window import bucket_quantile
from controller.estimation.readings import Known, Stale, Unknown, Why, derived, ratio, total
from controller.estimation.scrapes import failed
from controller.estimation.signals import Signal

pytestmark = pytest.mark.unit

ENDED = "dynamo_frontend_requests_total"
TTFT = "dynamo_frontend_time_to_first_token_seconds"
ITL = "dynamo_frontend_inter_token_latency_seconds"


def test_a_rate_needs_two_looks():
    assert texts(f"{ENDED} 5").rate(Signal.ENDED) == Unknown(Why.NOT_YET)
    assert texts(f"{ENDED} 5", f"{ENDED} 15").rate(Signal.ENDED) == Known(2.0)


def test_a_reset_counts_from_zero_and_never_backwards():
    assert texts(f"{ENDED} 100", f"{ENDED} 4", f"{ENDED} 9").rate(Signal.ENDED) == Known(0.9)


def test_a_series_that_appears_at_a_known_target_began_at_zero():
    other = "dynamo_frontend_active_requests 0"
    assert texts(other, f"{other}\n{ENDED} 10").rate(Signal.ENDED) == Known(2.0)
    # At the first look it has a past that nobody saw.
    assert texts(f"{ENDED} 10", f"{ENDED} 10").rate(Signal.ENDED) == Known(0.0)


def test_a_value_that_is_no_count_is_passed_over():
    for odd in ("NaN", "-3", "+Inf"):
        assert texts(f"{ENDED} 0", f"{ENDED} {odd}", f"{ENDED} 20").rate(Signal.ENDED) == Known(2.0)


def test_series_add_up_over_targets_and_labels():
    looks = [
        look(f'{ENDED}{{status="success"}} {n}\n{ENDED}{{status="error"}} {n}', 5.0 * i, target)
        for target in ("a", "b")
        for i, n in enumerate((0, 10))
    ]
    assert window(*looks).rate(Signal.ENDED) == Known(8.0)


def test_the_window_forgets():
    made = texts(*(f"{ENDED} {n}" for n in (0, 100, 100, 100, 100, 100, 100, 100, 110)))
    assert made.increase(Signal.ENDED) == Known(10.0)


def test_a_target_that_does_not_answer_makes_its_values_stale_and_then_nothing_else():
    made = texts(f"{ENDED} 0", f"{ENDED} 10", None, None, None, None)
    assert made.rate(Signal.ENDED) == Stale(20.0, 10.0)
    assert made.failures() == {"frontend": "refused"}
    assert made.stale_targets() == ("frontend",)


def test_absent_is_named_by_its_kind():
    assert texts(None).gauge(Signal.ACTIVE) == Unknown(Why.SOURCE_FAILED)
    assert texts("# nothing").gauge(Signal.ACTIVE) == Unknown(Why.NEVER_SEEN)
    gone = texts("dynamo_frontend_active_requests 3", "# nothing")
    assert gone.gauge(Signal.ACTIVE) == Unknown(Why.GONE)
    assert texts("dynamo_frontend_active_requests NaN").gauge(Signal.ACTIVE) == Unknown(
        Why.NOT_A_NUMBER
    )
    assert texts("dynamo_frontend_active_requests 0").gauge(Signal.ACTIVE) == Known(0.0)


def test_means_go_on_where_buckets_change_and_quantiles_do_not():
    before = histogram(ITL, {"1": 0, "2.0": 0, "+Inf": 0}, 0.0)
    after = histogram(ITL, {"1": 0, "80": 4, "+Inf": 4}, 12.0)
    later = histogram(ITL, {"1": 4, "80": 8, "+Inf": 8}, 14.0)
    made = texts(before, after, later)
    assert made.quantile(Signal.ITL, 0.5) == Unknown(Why.BUCKETS_CHANGED)
    assert made.mean(Signal.ITL).value == pytest.approx(14.0 / 8)
    new_only = texts(after, later)
    assert new_only.quantile(Signal.ITL, 0.5) == Known(0.5)


def test_a_quantile_is_interpolated_in_its_bucket_and_cut_off_in_the_last():
    counts = (0.0, 10.0, 20.0)
    assert bucket_quantile((1.0, 2.0, float("inf")), counts, 20.0, 0.25) == Known(1.5)
    assert bucket_quantile((1.0, 2.0, float("inf")), counts, 20.0, 0.75) == Known(2.0, True)
    assert bucket_quantile((1.0,), (0.0,), 0.0, 0.5) == Unknown(Why.NO_SAMPLES)


def test_a_quantile_or_mean_of_nothing_is_unknown():
    same = histogram(TTFT, {"1": 3, "+Inf": 3}, 1.0)
    made = texts(same, same)
    assert made.quantile(Signal.TTFT, 0.99) == Unknown(Why.NO_SAMPLES)
    assert made.mean(Signal.TTFT) == Unknown(Why.NO_SAMPLES)


def test_a_histogram_without_its_sum_has_quantiles_but_no_mean():
    def lines(count):
        return f'{TTFT}_bucket{{le="1"}} {count}\n{TTFT}_bucket{{le="+Inf"}} {count}'

    made = texts(lines(0), lines(10))
    assert made.quantile(Signal.TTFT, 0.5) == Known(0.5)
    assert made.mean(Signal.TTFT) == Unknown(Why.NOT_A_NUMBER)


def test_a_target_that_was_taken_out_is_forgotten():
    made = window(look(f"{ENDED} 0", 0.0, "a"), failed("b", 0.0, "refused"))
    made.retain({"a"})
    assert made.targets == ("a",) and made.failures() == {}


def test_nothing_is_derived_from_an_absent_operand():
    gone = Unknown(Why.GONE)
    assert ratio(Known(1.0), gone) == gone
    assert ratio(Known(1.0), Known(0.0)) == Unknown(Why.NO_SAMPLES)
    assert total([Known(1.0), gone]) == gone
    assert derived(lambda a, b: a * b, Known(2.0), Known(3.0)) == Known(6.0)
    assert total([]) == Unknown(Why.NO_WORKERS)
