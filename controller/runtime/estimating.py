# SPDX-License-Identifier: Apache-2.0
"""The estimator against a running deployment: sources, a clock, one estimate a period.

Owns: putting sources and discovery together, when they are asked. Does not own: what is estimated
(controller.estimation), printing (controller.cli).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from controller.estimation.estimate import Estimate, Estimator, EstimatorParams
from controller.estimation.signals import wanted_samples
from controller.runtime.sources.discovery import discover
from controller.runtime.sources.passes import PassSource
from controller.runtime.sources.promql import PrometheusSettings, PrometheusSource
from controller.runtime.sources.scraping import ScrapeSource

METRICS_PREFIX = "DYN_METRICS_PREFIX"


@dataclass(frozen=True, slots=True)
class Deployed:
    """Where a deployment is to be found."""

    url: str | None = None
    """Its frontend."""
    targets: tuple[str, ...] = ()
    """More `/metrics`: workers' system ports, our router's."""
    prometheus: PrometheusSettings | None = None
    """Instead of scraping."""
    file_kv: Path | None = None
    """Folder of file discovery, for model cards."""
    listen: Any = None
    """A `LiveTarget` whose forward passes are followed; None: they are not."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


class Estimating:
    """An `Estimator` and its sources; made by `estimating`."""

    def __init__(
        self,
        deployed: Deployed,
        params: EstimatorParams,
        http: aiohttp.ClientSession,
        passes: PassSource | None,
    ) -> None:
        self.estimator = Estimator(params)
        self.discovery_failure: str | None = None
        self._deployed = deployed
        self._http = http
        self._passes = passes
        wanted = wanted_samples(deployed.environ.get(METRICS_PREFIX) or "dynamo_frontend")
        self._source: ScrapeSource | PrometheusSource
        if deployed.prometheus is not None:
            window_s = params.window_s + params.period_s
            self._source = PrometheusSource(deployed.prometheus, wanted, http, window_s)
        else:
            named = (deployed.url,) if deployed.url else ()
            self._source = ScrapeSource((*named, *deployed.targets), wanted, http)

    async def tick(self) -> Estimate:
        """Ask everybody once."""
        scrapes = await self._source.look()
        if self._passes is not None:
            scrapes = [*scrapes, *await self._passes.look()]
        self.estimator.take(scrapes)
        found, self.discovery_failure = await discover(
            self._http, self._deployed.url, self._deployed.file_kv
        )
        return self.estimator.tick(time.time(), found)

    async def ticks(self, count: int | None) -> AsyncIterator[Estimate]:
        """One estimate a period, `count` of them (None: until cancelled)."""
        period_s = self.estimator.params.period_s
        start_s, done = time.monotonic(), 0
        while count is None or done < count:
            yield await self.tick()
            done += 1
            if count is None or done < count:
                late_s = time.monotonic() - start_s - done * period_s
                await asyncio.sleep(max(0.0, -late_s))


@contextlib.asynccontextmanager
async def estimating(deployed: Deployed, params: EstimatorParams) -> AsyncIterator[Estimating]:
    """Sources are open inside the block. UserError for what the operator gave wrongly."""
    passes, runtime = None, None
    async with aiohttp.ClientSession() as http:
        if deployed.listen is not None:
            passes, runtime = _listen(deployed.listen)
        try:
            yield Estimating(deployed, params, http, passes)
        finally:
            if passes is not None:
                passes.close()
            if runtime is not None:
                runtime.shutdown()


def _listen(target: Any) -> tuple[PassSource, Any]:
    from controller.runtime.dynamo_io import make_runtime

    os.environ.update(target.environ)
    runtime = make_runtime(target.dynamo)
    passes = PassSource()
    passes.start([runtime.endpoint(path) for path in target.endpoints])
    return passes, runtime
