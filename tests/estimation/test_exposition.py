# SPDX-License-Identifier: Apache-2.0
"""Reading metric text: Dynamo's own as the official parser does, hostile text without a word."""

import math

import pytest
from estimation_kit import look, reader
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from shared_data import shared_path

from controller.estimation.metric_window import MetricWindow
from controller.estimation.readings import Known
from controller.estimation.signals import SPECS, Kind, Signal, wanted_samples

pytestmark = pytest.mark.unit

FIXTURES = (
    "dynamo-1.6.1-frontend-disagg-mocker.prom",
    "dynamo-1.6.1-frontend-idle-before-first-request.prom",
    "dynamo-1.6.1-prefill-worker-mocker.prom",
)


@pytest.mark.parametrize("name", FIXTURES)
def test_dynamos_own_text_reads_as_with_the_official_parser(name):
    text = shared_path(f"fixtures/{name}").read_text()
    wanted = wanted_samples()
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    }
    ours = {
        (name, labels): value
        for name, labels, value in (
            (_name(sample.wanted), sample.labels, sample.value) for sample in reader().read(text)
        )
    }
    assert ours == theirs and theirs


def _name(wanted):
    return wanted.family + ("" if wanted.part.value == "value" else f"_{wanted.part.value}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('dynamo_frontend_active_requests{model="a\\"b\\\\c\\n"} 3', 'a"b\\c\n'),
        ('dynamo_frontend_active_requests{model="a,b={}"} 3 1700000000000', "a,b={}"),
        ('dynamo_frontend_active_requests { model = "a" , } 3', None),
        ('dynamo_frontend_active_requests{ model = "a" , } 3', "a"),
    ],
)
def test_labels_as_the_format_allows_them(line, expected):
    series = look(line, 0.0).series.get(Signal.ACTIVE, {})
    assert [dict(labels).get("model") for labels in series] == ([expected] if expected else [])
    assert list(series.values()) == ([3.0] if expected else [])


@pytest.mark.parametrize(
    "line",
    [
        'dynamo_frontend_active_requests{model="a} 3',
        'dynamo_frontend_active_requests{model="a"} three',
        'dynamo_frontend_active_requests{model="a"}',
        "dynamo_frontend_active_requests{model=a} 3",
        "dynamo_frontend_active_requests",
    ],
)
def test_a_line_that_cannot_be_read_costs_that_line_and_is_counted(line):
    scrape = look(f'{line}\ndynamo_frontend_active_requests{{model="b"}} 5', 0.0)
    assert list(scrape.series[Signal.ACTIVE].values()) == [5.0]
    assert scrape.skipped == 1


def test_of_a_duplicate_the_first_counts():
    scrape = look("dynamo_frontend_active_requests 3\ndynamo_frontend_active_requests 4", 0.0)
    assert scrape.series[Signal.ACTIVE] == {(): 3.0}


NAMES = sorted(wanted_samples())
VALUES = st.one_of(
    st.sampled_from(["NaN", "+Inf", "-Inf", "-5", "1e308", "0", "", "x", "0x10", "1_0"]),
    st.floats().map(repr),
    st.integers(-10, 10**12).map(str),
)
LABELS = st.one_of(
    st.just(""),
    st.sampled_from(['{le="1"}', '{le="+Inf"}', '{le="NaN"}', '{le="x"}', '{worker_id="7"}', "{"]),
    st.text(max_size=12).map(lambda t: "{" + t + "}"),
    st.tuples(st.text(max_size=6), st.text(max_size=6)).map(
        lambda p: f'{{{p[0]}="{p[1]}",le="2"}}'
    ),
)
LINES = st.one_of(
    st.tuples(st.sampled_from(NAMES), LABELS, VALUES).map(lambda p: f"{p[0]}{p[1]} {p[2]}"),
    st.text(max_size=40),
    st.sampled_from(["# HELP x y", "# TYPE dynamo_frontend_requests_total counter", ""]),
)
TEXTS = st.lists(LINES, max_size=10).map("\n".join)


def _ask_everything(window: MetricWindow) -> None:
    for signal, spec in SPECS.items():
        window.gauge(signal)
        if spec.kind is Kind.GAUGE:
            continue
        for said in (window.rate(signal), window.increase(signal), window.mean(signal)):
            if isinstance(said, Known) and spec.kind is Kind.COUNTER:
                assert said.value >= 0
            assert not isinstance(said, Known) or math.isfinite(said.value)
        rate = window.rate(signal)
        assert not isinstance(rate, Known) or rate.value >= 0
        if spec.kind is Kind.HISTOGRAM:
            window.quantile(signal, 0.99)


# Ten texts an example: 10,000 in all.
@settings(max_examples=1000)
@given(st.lists(TEXTS, min_size=10, max_size=10))
def test_ten_thousand_hostile_texts_raise_nothing_and_give_no_negative_rate(texts):
    window = MetricWindow(12.0, 8.0)
    for number, text in enumerate(texts):
        window.add(look(text, 5.0 * number, "a" if number % 3 else "b"))
        window.advance(5.0 * number + 1.0)
        if number % 3 == 0:
            _ask_everything(window)
