# SPDX-License-Identifier: Apache-2.0
"""What a router process needs whatever its attachment: runtime, core, metrics, log, discovery.

Owns: making these, following discovery and ForwardPassMetrics, waiting for the workers' model
card, telling where the metrics are. Does not own: what is registered with Dynamo and how a
request is answered (broker.py, relay.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from controller.config import DeploymentConfig, OrderingConfig
from controller.costs.model import TableCost
from controller.errors import UserError
from controller.routing.decision_record import RouterRow
from controller.routing.inflight import InFlightBound
from controller.routing.kernels.orderings import ORDERINGS, Ordering
from controller.routing.registry import PLACEMENTS
from controller.routing.units import worker_of
from controller.runtime.clock import Clock
from controller.runtime.dynamo_io import make_runtime
from controller.runtime.forward_passes import ForwardPasses
from controller.runtime.replicas.sessions import Sessions
from controller.runtime.resources import read_profile
from controller.runtime.router.core import CoreSettings, RouterCore
from controller.runtime.router.decision_log import DecisionLog
from controller.runtime.router.decode_state import DecodeState, PassReport
from controller.runtime.router.gauges import export_router
from controller.runtime.router.handover import unsupported_backend
from controller.runtime.router.hints import Objectives
from controller.runtime.router.mode import Mode, ModeFile
from controller.runtime.router.ports import (
    DynamoPrefillPort,
    PrefillStep,
    PrefixIndex,
    WorkerCards,
    engine_facts,
    pass_report,
    prefill_step,
    read_cards,
)
from controller.runtime.router.queues import QueueOptions
from controller.runtime.router.records import unix_now
from controller.runtime.router.router_metrics import RouterMetrics
from controller.runtime.router.run_files import facts_name, log_name
from controller.runtime.router.shared_queues import SharedQueues
from controller.runtime.stop_signals import on_stop_signals

logger = logging.getLogger(__name__)

_CARD_WAIT_S = 30.0
_SYNC_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Parts:
    """What `RouterProcess.start` has made."""

    runtime: Any
    core: RouterCore
    prefill_port: DynamoPrefillPort
    prefill_client: Any
    decode_client: Any
    card: dict[str, Any]
    """The model card to mirror."""
    block_size: int
    kv_tokens: int | None
    """KV tokens that a decode worker has room for, by its card."""
    log: DecisionLog


class RouterProcess:
    """One router process, up to what it registers. `start` and `close` once each."""

    def __init__(self, config: DeploymentConfig, run_dir: Path, replica: int = 0) -> None:
        """`replica`: number among the routers of the deployment."""
        self.config = config
        self.replica = replica
        self.sessions = Sessions()
        """What a relay's binding tells the other replicas."""
        self.clock = Clock(config.time_scale)
        self._run_dir = run_dir
        self._mode = ModeFile(run_dir, Mode(config.router.mode))
        self._registry = CollectorRegistry()
        self.metrics = RouterMetrics(self._registry, config.router.policy)
        router = config.router
        self.decode = DecodeState(
            router.window_s,
            budget_tokens=router.max_num_batched_tokens,
            followed=router.attachment == "relay",
        )
        self._queues = SharedQueues(
            InFlightBound(router.max_num_batched_tokens),
            router.window_s,
            _ordering(router.ordering),
            QueueOptions(
                reject=router.ordering.reject,
                late_binding=router.late_binding,
                revise=router.policy == "batch",
                weights=config.slo.weights_of_tenants(),
            ),
        )
        self._closing: list[Callable[[], Any]] = []

    async def start(
        self,
        card_of: Sequence[str],
        sticky_sessions: bool,
        on_report: Callable[[PassReport], None] = lambda report: None,
    ) -> Parts:
        """Connect to both pools; SIGTERM and SIGINT shut the runtime down from here on.

        `card_of` names endpoints in order of preference: the first that has a worker gives the
        model card. `on_report` gets every forward pass of a decode worker.
        """
        config = self.config
        runtime = make_runtime(config.dynamo)
        stopping = contextlib.ExitStack()
        stopping.enter_context(on_stop_signals(runtime.shutdown))
        self._closing.append(stopping.close)
        prefill = runtime.endpoint(config.prefill_endpoint)
        decode = runtime.endpoint(config.decode_endpoint)
        decode_client = await decode.client()
        card = await self._card(runtime, card_of)
        if (why := unsupported_backend(card)) is not None:
            raise UserError(why)
        block_size = int(card.get("kv_cache_block_size") or 64)
        prefill_client = await prefill.client()
        port = DynamoPrefillPort(prefill_client, decode_client, PrefixIndex(prefill, block_size))

        def observe(report: PassReport) -> None:
            self.decode.observe(report, self.clock.now())
            on_report(report)

        reports = ForwardPasses(decode, pass_report, observe)
        steps = ForwardPasses(prefill, prefill_step, self._stepped)
        log = self._log(int(decode.connection_id()))
        cards, prefill_cards = WorkerCards(decode), WorkerCards(prefill)
        self._closing += [reports.close, steps.close, log.close, cards.close, prefill_cards.close]
        self._queues.block_size = block_size
        costs = read_profile(config.router.profile).cost_model()
        core = self._core(port, log, costs, sticky_sessions)
        self._join(log, costs)
        self.keep(self._sync(core, port, decode_client, cards, prefill_cards))
        export_router(self.metrics, port, core, self._queues, self.clock.now)
        return Parts(
            runtime=runtime,
            core=core,
            prefill_port=port,
            prefill_client=prefill_client,
            decode_client=decode_client,
            card=card,
            block_size=block_size,
            kv_tokens=engine_facts(card).kv_tokens,
            log=log,
        )

    def _stepped(self, step: PrefillStep) -> None:
        self._queues.stepped(step.unit_id, step.step_tokens, step.waiting_tokens, self.clock.now())

    def _log(self, instance_id: int) -> DecisionLog:
        config, router = self.config, self.config.router
        row = RouterRow(
            router_id=f"{instance_id:x}",
            replica=self.replica,
            replicas=1,
            model=config.model,
            attachment=router.attachment,
            policy=router.policy,
            profile=router.profile,
            ttft_ms=config.slo.ttft_ms,
            itl_ms=config.slo.itl_ms,
            time_scale=config.time_scale,
            started_unix_s=unix_now(),
            params=router.model_dump(
                include={"alpha", "beta", "window_s", "toll", "ordering", "late_binding"}
            ),
        )
        path = self._run_dir / log_name(self.replica)
        return DecisionLog(
            path, row, int(router.decision_log.max_mb * 1e6), router.decision_log.files
        )

    def announce(self, instance_id: int) -> None:
        """Open the metrics port and say where, for the operator and the launcher."""
        router = self.config.router
        port = router.metrics_port + self.replica if router.metrics_port else 0
        server, _ = start_http_server(port, addr="127.0.0.1", registry=self._registry)
        facts = {"instance_id": instance_id, "metrics_port": server.server_port}
        path = self._run_dir / facts_name(self.replica)
        path.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        logger.info(
            "router.serving attachment=%s instance=%x policy=%s metrics=http://127.0.0.1:%d/metrics",
            router.attachment,
            instance_id,
            router.policy,
            server.server_port,
        )

    def keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something beside the serving until `close`."""
        self._closing.append(asyncio.create_task(coroutine).cancel)

    def close(self) -> None:
        """Stop following and writing. What `keep` runs may end within the loop's next turns."""
        for close in self._closing:
            close()

    def _join(self, log: DecisionLog, costs: TableCost) -> None:
        """The other replicas, if there may be any."""
        redis = self.config.router.redis
        if redis is None:
            return
        # A router alone starts sooner without Redis's client.
        from controller.runtime.replicas.joining import export_group, make_group

        def changed(replicas: int) -> None:
            self.decode.among(replicas)
            log.say(replace(log.router, replicas=replicas))

        name = f"{self.replica}-{secrets.token_hex(4)}"
        group = make_group(
            name, self.config, self._queues, costs, self.decode, self.sessions, self.clock, changed
        )
        export_group(self.metrics, group, self._queues)
        self.keep(group.run())

    def _core(
        self, port: DynamoPrefillPort, log: DecisionLog, costs: TableCost, sticky_sessions: bool
    ) -> RouterCore:
        router = self.config.router
        slo = self.config.slo.value()
        rule = PLACEMENTS[router.policy](
            costs, slo, router.params(), Random(router.seed + self.replica)
        )
        settings = CoreSettings(
            max_wait_s=router.max_wait_s,
            prefill_timeout_s=router.prefill_timeout_s,
            sticky_sessions=sticky_sessions,
            handover_s=router.kv_lease_s if router.attachment == "relay" else None,
            most_requests=router.max_requests,
        )
        return RouterCore(
            rule,
            costs,
            Objectives(slo, self.config.slo.of_tenants()),
            settings,
            port,
            self._queues,
            self.decode,
            self.clock,
            self.metrics,
            log,
            lambda: self._mode.shadow,
        )

    async def _sync(
        self,
        core: RouterCore,
        port: DynamoPrefillPort,
        decode_client: Any,
        cards: WorkerCards,
        prefill_cards: WorkerCards,
    ) -> None:
        """Follow discovery also while no request comes in, so that waiters learn of a death."""
        known: set[int] = set()
        while True:
            self._mode.refresh()
            ids = set(map(worker_of, port.live()))
            for worker_id, facts in prefill_cards.facts(sorted(ids - known)).items():
                port.equip(worker_id, facts.ranks)
                core.equip(worker_id, facts.kv_tokens)
                known.add(worker_id)
            known &= ids
            self._queues.sync(port.live(), self.clock.now())
            core.sweep()
            self.decode.sync(decode_client.instance_ids())
            for worker_id, facts in cards.facts(self.decode.unknown()).items():
                self.decode.equip(worker_id, facts)
            await asyncio.sleep(_SYNC_PERIOD_S)

    async def _card(self, runtime: Any, card_of: Sequence[str]) -> dict[str, Any]:
        from dynamo.llm import FpmEventSubscriber

        subscribers = [FpmEventSubscriber(runtime.endpoint(path)) for path in card_of]
        for subscriber in subscribers:
            subscriber.start_tracking()
        try:
            deadline = asyncio.get_running_loop().time() + _CARD_WAIT_S
            while True:
                for subscriber in subscribers:
                    cards = read_cards(subscriber)
                    if cards:
                        return next(iter(cards.values()))
                if asyncio.get_running_loop().time() > deadline:
                    raise UserError(
                        f"no worker registered a model card within {_CARD_WAIT_S:g} s at "
                        f"{' or '.join(card_of)}; start the workers, or check dynamo.namespace "
                        "and the router's private namespaces"
                    )
                await asyncio.sleep(0.1)
        finally:
            for subscriber in subscribers:
                subscriber.shutdown()


def _ordering(config: OrderingConfig) -> Ordering:
    max_wait_s = math.inf if config.max_wait_s is None else config.max_wait_s
    return Ordering(
        ORDERINGS[config.rule], config.window, config.late_share, max_wait_s, config.passed_cap
    )
