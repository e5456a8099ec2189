# SPDX-License-Identifier: Apache-2.0
"""A Prometheus server as a source: the raw samples of the last seconds, by one PromQL query.

Owns: the query, the request, authentication, back-off. Does not own: rates and quantiles: those are
made here from the same samples as of a direct scrape, so one rule holds for both (a server's own
`rate` extrapolates, and says 0/0 where we say unknown).

The environment is Dynamo's: PROMETHEUS_ENDPOINT, PROMETHEUS_TOKEN or PROMETHEUS_TOKEN_FILE,
PROMETHEUS_SSL_VERIFY, PROMETHEUS_CA_BUNDLE. A server that is away costs one line, not one a tick:
it is asked again after 1, 2, 4, ... up to 60 s.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from controller.errors import UserError
from controller.estimation.exposition import Sample
from controller.estimation.scrapes import Scrape, failed, scrape_of_samples
from controller.estimation.signals import Signal, Wanted

_TARGET_LABELS = ("instance", "job", "pod", "container", "namespace", "prometheus", "endpoint")
_LONGEST_PAUSE_S = 60.0
_NO = ("0", "false", "no")


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """How the server is reached."""

    endpoint: str
    token: str | None = None
    verify: bool = True
    ca_bundle: str | None = None
    timeout_s: float = 10.0
    matchers: str = ""
    """More label matchers of the query, as in `job="dynamo"`."""


def settings_from(environ: Mapping[str, str], endpoint: str | None = None) -> PrometheusSettings:
    """By Dynamo's variables; UserError without an address, or for a file that cannot be read."""
    address = endpoint or environ.get("PROMETHEUS_ENDPOINT")
    if not address:
        raise UserError("no Prometheus address; give --prometheus URL or set PROMETHEUS_ENDPOINT")
    token, token_file = environ.get("PROMETHEUS_TOKEN"), environ.get("PROMETHEUS_TOKEN_FILE")
    if token is None and token_file:
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"PROMETHEUS_TOKEN_FILE {token_file} cannot be read: {error}") from None
    return PrometheusSettings(
        endpoint=address.rstrip("/") if "://" in address else f"http://{address}".rstrip("/"),
        token=token or None,
        verify=environ.get("PROMETHEUS_SSL_VERIFY", "true").strip().lower() not in _NO,
        ca_bundle=environ.get("PROMETHEUS_CA_BUNDLE") or None,
    )


def ssl_context(settings: PrometheusSettings) -> ssl.SSLContext | bool:
    """For aiohttp. UserError for a CA bundle that cannot be used."""
    if not settings.verify:
        return False
    if settings.ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"PROMETHEUS_CA_BUNDLE {settings.ca_bundle} cannot be used: {error}"
        ) from None


class PrometheusSource:
    """`look` gives the samples of the last `window_s` as scrapes, one a target and instant."""

    def __init__(
        self,
        settings: PrometheusSettings,
        wanted: Mapping[str, Wanted],
        http: aiohttp.ClientSession,
        window_s: float,
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._http = http
        self._ssl = ssl_context(settings)
        self._query = query(wanted, settings.matchers, window_s)
        self._pause_s = 0.0
        self._again_s = 0.0
        self.failure: str | None = None
        """Why the latest look failed; None when it did not."""

    async def look(self) -> list[Scrape]:
        """All samples of the window; one failed scrape when the server does not answer."""
        if time.monotonic() < self._again_s:
            return [failed(self._settings.endpoint, time.time(), self.failure or "away")]
        try:
            found = scrapes_of_matrix(await self._asked(), self._wanted)
        except asyncio.TimeoutError:
            return self._failed(f"no answer in {self._settings.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return self._failed(" ".join(str(error).split()) or type(error).__name__)
        self._pause_s, self._again_s, self.failure = 0.0, 0.0, None
        return found

    async def _asked(self) -> Any:
        headers = (
            {"Authorization": f"Bearer {self._settings.token}"} if self._settings.token else {}
        )
        async with self._http.post(
            f"{self._settings.endpoint}/api/v1/query",
            data={"query": self._query},
            headers=headers,
            ssl=self._ssl,
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
        ) as response:
            body = await response.text()
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}: {_error_of(body)}")
            return json.loads(body)

    def _failed(self, why: str) -> list[Scrape]:
        self.failure = f"Prometheus at {self._settings.endpoint}: {why}"
        self._pause_s = min(_LONGEST_PAUSE_S, max(1.0, 2 * self._pause_s))
        self._again_s = time.monotonic() + self._pause_s
        return [failed(self._settings.endpoint, time.time(), self.failure)]


def query(wanted: Mapping[str, Wanted], matchers: str, window_s: float) -> str:
    """A range selector over every wanted name."""
    names = "|".join(sorted(wanted))
    more = f",{matchers}" if matchers else ""
    return f'{{__name__=~"{names}"{more}}}[{max(1, round(window_s))}s]'


def scrapes_of_matrix(answer: Any, wanted: Mapping[str, Wanted]) -> list[Scrape]:
    """Samples of one target and instant are one scrape, in order of time. ValueError for others."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("result"), list):
        raise ValueError(f"not an answer of Prometheus: {_error_of(json.dumps(answer))}")
    found: dict[tuple[float, str], list[Sample]] = {}
    down: set[tuple[float, str]] = set()
    for series in data["result"]:
        metric = series.get("metric") or {}
        entry = wanted.get(str(metric.get("__name__")))
        if entry is None:
            continue
        target = _target(metric)
        labels = tuple(
            sorted(
                (str(k), str(v))
                for k, v in metric.items()
                if k != "__name__" and k not in _TARGET_LABELS
            )
        )
        for at_s, text in _values(series):
            if entry.signal is Signal.UP:
                if text == 0.0:
                    down.add((at_s, target))
            else:
                found.setdefault((at_s, target), []).append(Sample(entry, labels, text))
    scrapes = [scrape_of_samples(samples, target, at) for (at, target), samples in found.items()]
    scrapes += [failed(target, at, "up is 0") for at, target in down if (at, target) not in found]
    return sorted(scrapes, key=lambda scrape: scrape.at_s)


def _values(series: Mapping[str, Any]) -> list[tuple[float, float]]:
    pairs = series.get("values") or ([series["value"]] if "value" in series else [])
    found = []
    for pair in pairs:
        try:
            found.append((float(pair[0]), float(pair[1])))
        except (TypeError, ValueError, IndexError):
            continue
    return found


def _target(metric: Mapping[str, Any]) -> str:
    job, instance = metric.get("job"), metric.get("instance")
    return f"{job}/{instance}" if job else str(instance or "prometheus")


def _error_of(body: str) -> str:
    try:
        said = json.loads(body)
        return str(said.get("error") or body)[:200]
    except (ValueError, AttributeError):
        return " ".join(body.split())[:200]
