# SPDX-License-Identifier: Apache-2.0
"""Receiving Dynamo's ForwardPassMetrics: one message a forward pass of a worker.

Owns: the subscription, its thread, the way onto the event loop. Does not own: what is made of
the messages (router: windows; profiling: fits). Stock workers publish them too; vLLM does when it
is started with DYN_FORWARDPASS_METRIC_PORT set.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

_THREAD_END_S = 2.0


T = TypeVar("T")


class ForwardPasses(Generic[T]):
    """Every message of an endpoint's workers: `parse` in the receiving thread, `sink` on the loop.

    `parse` takes Dynamo's ForwardPassMetrics; a message that it raises on is dropped.
    """

    def __init__(self, endpoint: Any, parse: Callable[[Any], T], sink: Callable[[T], None]) -> None:
        from dynamo.common.forward_pass_metrics import decode
        from dynamo.llm import FpmEventSubscriber

        self._decode = decode
        self._parse = parse
        self._sink = sink
        self._subscriber = FpmEventSubscriber(endpoint)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._receive, name="fpm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop receiving; a thread still inside Dynamo would abort the ending interpreter."""
        self._subscriber.shutdown()
        self._thread.join(_THREAD_END_S)

    def _receive(self) -> None:
        while True:
            try:
                raw = self._subscriber.recv()
            except Exception as error:
                logger.warning("forward_passes.ended error=%s", error)
                return
            if raw is None:
                return
            for message in self._read(raw):
                try:
                    self._loop.call_soon_threadsafe(self._sink, message)
                except RuntimeError:
                    return  # the loop has closed: the process is ending

    def _read(self, raw: bytes) -> tuple[T, ...]:
        try:
            metrics = self._decode(raw)
            return () if metrics is None else (self._parse(metrics),)
        except Exception as error:
            logger.debug("forward_passes.unreadable error=%s", error)
            return ()
