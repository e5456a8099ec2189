# SPDX-License-Identifier: Apache-2.0
"""Prometheus as a source: settings, answers, absence; and scraping, against loopback."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from controller.errors import UserError
from controller.estimation.metric_window import MetricWindow
from controller.estimation.readings import Known
from controller.estimation.signals import Signal, wanted_samples
from controller.runtime.sources.promql import (
    PrometheusSource,
    query,
    scrapes_of_matrix,
    settings_from,
    ssl_context,
)
from controller.runtime.sources.scraping import ScrapeSource, metrics_url

pytestmark = pytest.mark.integration
WANTED = wanted_samples()
ENDED = "dynamo_frontend_requests_total"


def test_settings_are_dynamos_variables(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    found = settings_from(
        {
            "PROMETHEUS_ENDPOINT": "prometheus.monitoring:9090/",
            "PROMETHEUS_TOKEN_FILE": str(tmp_path / "token"),
            "PROMETHEUS_SSL_VERIFY": "False",
        }
    )
    assert found.endpoint == "http://prometheus.monitoring:9090"
    assert found.token == "secret" and not found.verify
    assert ssl_context(found) is False


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "PROMETHEUS_ENDPOINT"),
        ({"PROMETHEUS_ENDPOINT": "x", "PROMETHEUS_TOKEN_FILE": "/nowhere"}, "/nowhere"),
        ({"PROMETHEUS_ENDPOINT": "x", "PROMETHEUS_CA_BUNDLE": "/nowhere.pem"}, "/nowhere.pem"),
    ],
)
def test_what_the_operator_gave_wrongly_is_one_line(environ, said):
    with pytest.raises(UserError, match=said):
        ssl_context(settings_from(environ))


def matrix(*series):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}


def ended(values, **labels):
    metric = {"__name__": ENDED, "job": "dynamo", "instance": "f:8000"} | labels
    return {"metric": metric, "values": values}


def test_samples_of_one_instant_are_one_scrape_and_rates_are_ours():
    answer = matrix(
        ended([[100, "0"], [105, "10"]], status="success"),
        ended([[100, "0"], [105, "5"]], status="error"),
        {"metric": {"__name__": "up", "job": "dynamo", "instance": "w:9"}, "values": [[105, "0"]]},
        {"metric": {"__name__": "unwanted"}, "values": [[105, "1"]]},
        {"metric": {"__name__": ENDED, "instance": "odd"}, "values": [["x"], None, [1, "NaN"]]},
    )
    window = MetricWindow(30.0, 15.0)
    for scrape in scrapes_of_matrix(answer, WANTED):
        window.add(scrape)
    assert window.rate(Signal.ENDED, lambda t, _: t == "dynamo/f:8000") == Known(3.0)
    assert window.failures() == {"dynamo/w:9": "up is 0"}


@pytest.mark.parametrize("answer", [None, [], {}, {"data": None}, {"data": {"result": {}}}])
def test_an_answer_that_is_none_is_an_error_not_an_empty_result(answer):
    with pytest.raises(ValueError):
        scrapes_of_matrix(answer, WANTED)
    assert scrapes_of_matrix(matrix(), WANTED) == []


async def served(aiohttp_app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(aiohttp_app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_the_query_is_posted_with_the_token_and_asks_for_every_name():
    asked = {}

    async def answer(request: web.Request) -> web.Response:
        asked["token"] = request.headers.get("Authorization")
        asked["query"] = (await request.post())["query"]
        return web.json_response(matrix(ended([[100, "3"]])))

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    runner, url = await served(app)
    try:
        async with aiohttp.ClientSession() as http:
            settings = settings_from({"PROMETHEUS_TOKEN": "secret"}, url)
            (scrape,) = await PrometheusSource(settings, WANTED, http, 35.0).look()
    finally:
        await runner.cleanup()
    assert scrape.ok and scrape.target == "dynamo/f:8000"
    assert asked["token"] == "Bearer secret"
    assert asked["query"] == query(WANTED, "", 35.0)
    assert asked["query"].endswith("[35s]") and ENDED in asked["query"]


async def test_a_server_that_is_away_is_a_failed_scrape_with_its_address_and_is_left_alone():
    async with aiohttp.ClientSession() as http:
        source = PrometheusSource(settings_from({}, "http://127.0.0.1:9"), WANTED, http, 30.0)
        for _ in range(2):  # the second is not asked: it waits
            (scrape,) = await source.look()
            assert not scrape.ok and "127.0.0.1:9" in scrape.failure


async def test_an_error_of_the_server_is_said_in_its_own_words():
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"status": "error", "error": "parse error"}, status=400)

    app = web.Application()
    app.router.add_post("/api/v1/query", refuse)
    runner, url = await served(app)
    try:
        async with aiohttp.ClientSession() as http:
            source = PrometheusSource(settings_from({}, url), WANTED, http, 30.0)
            (scrape,) = await source.look()
    finally:
        await runner.cleanup()
    assert scrape.failure.endswith("HTTP 400: parse error")


async def test_scraping_gives_one_scrape_a_target_and_failed_ones_say_why():
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=f"{ENDED} 4\n\xff")

    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/broken", broken)
    runner, url = await served(app)
    try:
        async with aiohttp.ClientSession() as http:
            source = ScrapeSource([url, url, f"{url}/broken", "127.0.0.1:9"], WANTED, http)
            good, bad, away = await source.look()
    finally:
        await runner.cleanup()
    assert good.series[Signal.ENDED] == {(): 4.0}
    assert bad.failure == "HTTP 503"
    assert not away.ok


def test_urls_without_a_path_mean_metrics():
    assert metrics_url("127.0.0.1:9") == "http://127.0.0.1:9/metrics"
    assert metrics_url("http://h:1/") == "http://h:1/metrics"
    assert metrics_url("https://h/own/metrics") == "https://h/own/metrics"
