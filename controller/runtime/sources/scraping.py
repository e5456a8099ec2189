# SPDX-License-Identifier: Apache-2.0
"""Scraping `/metrics` of frontends, routers and workers directly: needs no Prometheus.

Owns: one GET a target and look, all at once, its time-out. Does not own: which targets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import aiohttp

from controller.estimation.exposition import ExpositionReader
from controller.estimation.scrapes import Scrape, failed, scrape_of_text
from controller.estimation.signals import Wanted

_MOST_BYTES = 32 * 1024 * 1024


class ScrapeSource:
    """Targets are URLs; the path is `/metrics` where none is given."""

    def __init__(
        self,
        targets: Sequence[str],
        wanted: Mapping[str, Wanted],
        http: aiohttp.ClientSession,
        timeout_s: float = 4.0,
    ) -> None:
        self.targets = tuple(dict.fromkeys(metrics_url(target) for target in targets))
        self._reader = ExpositionReader(wanted)
        self._http = http
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def look(self) -> list[Scrape]:
        """One scrape a target, failed ones among them."""
        return list(await asyncio.gather(*(self._one(target) for target in self.targets)))

    async def _one(self, target: str) -> Scrape:
        try:
            async with self._http.get(target, timeout=self._timeout) as response:
                if response.status != 200:
                    return failed(target, time.time(), f"HTTP {response.status}")
                raw = await response.content.read(_MOST_BYTES)
        except asyncio.TimeoutError:
            return failed(target, time.time(), f"no answer in {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return failed(target, time.time(), str(error) or type(error).__name__)
        text = raw.decode("utf-8", errors="replace")
        return scrape_of_text(self._reader, text, target, time.time())


def metrics_url(url: str) -> str:
    """`http://host:port` -> that with `/metrics`; a URL with a path stays as it is."""
    base = url if "://" in url else f"http://{url}"
    _, _, rest = base.partition("://")
    return base.rstrip("/") + "/metrics" if "/" not in rest.rstrip("/") else base
