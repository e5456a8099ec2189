# SPDX-License-Identifier: Apache-2.0
"""Timed NIXL transfers between two processes of this machine, over a sweep of sizes.

A holder registers memory and waits; a reader reads from it as a decode worker reads the KV of a
finished prefill, one transfer at a time, from the call to the state DONE. Owns: the processes and
the timing. Does not own: memory (nixl_memory), the fit (controller.costs.kv_fit).

The first transfers of a size do not count (connection, registration caches). Every size is read
once more at its end into cleared memory and compared: a transfer that moves nothing fails.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from controller.costs.kv_fit import TransferTimes
from controller.errors import UserError
from controller.runtime.profiling.nixl_memory import Buffer, MemoryKind

INSTALL_HINT = (
    "NIXL is not installed: pip install 'dynamo-equilibrium[nixl]' (it brings torch with CUDA; "
    "host memory alone needs only: pip install --no-deps nixl nixl-cu12)"
)
_START_LIMIT_S = 60.0
_END_LIMIT_S = 5.0


class SweepError(UserError):
    """A sweep that gave no times; the message tells what failed."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to move."""

    sizes: tuple[int, ...]
    """Bytes of each transfer."""
    repeats: int = 20
    warm_up: int = 3
    memory: MemoryKind = MemoryKind.DRAM
    devices: tuple[int, int] = (0, 0)
    """GPUs of holder and reader."""
    piece_bytes: int | None = None
    """Bytes of one descriptor, as KV lies in blocks; None: a transfer is one piece."""
    transports: str | None = None
    """UCX_TLS of both processes; None: what the environment says, else UCX's own choice."""
    transfer_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Held:
    """What the reader needs to know of the holder."""

    metadata: bytes
    address: int
    device: int


Main = Callable[[Connection, SweepPlan], None]


def check_installed() -> None:
    """Raises UserError when there is no NIXL."""
    if importlib.util.find_spec("nixl") is None:
        raise UserError(INSTALL_HINT)


def sweep(
    plan: SweepPlan, report: Callable[[TransferTimes], None] = lambda times: None
) -> list[TransferTimes]:
    """Run it; `report` gets every size as it is done. Raises SweepError."""
    check_installed()
    results: list[TransferTimes] = []
    with _process(_hold, plan) as holder, _process(_read, plan) as reader:
        reader.send(_next(holder, _START_LIMIT_S))
        for _ in plan.sizes:
            limit_s = _START_LIMIT_S + (plan.repeats + plan.warm_up + 1) * plan.transfer_limit_s
            results.append(_next(reader, limit_s))
            report(results[-1])
    return results


@contextlib.contextmanager
def _process(main: Main, plan: SweepPlan) -> Iterator[Connection]:
    """A process of its own that ends with the block; the connection to it."""
    # Spawned: UCX reads its settings when it is loaded, and does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_guarded, args=(main, theirs, plan), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        child.join(_END_LIMIT_S)
        if child.is_alive():
            child.kill()
            child.join()


def _next(connection: Connection, limit_s: float) -> Any:
    try:
        if not connection.poll(limit_s):
            raise SweepError(f"no answer of a NIXL process within {limit_s:g} s")
        kind, value = connection.recv()
    except (EOFError, ConnectionError):
        raise SweepError("a NIXL process died; run with NIXL_LOG_LEVEL=DEBUG for its log") from None
    if kind == "error":
        raise SweepError(value)
    return value


def _guarded(main: Main, connection: Connection, plan: SweepPlan) -> None:
    """The life of a process: settings first, failures as one line to the parent."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    if plan.transports is not None:
        os.environ["UCX_TLS"] = plan.transports
    try:
        main(connection, plan)
    except (EOFError, ConnectionError, KeyboardInterrupt):
        pass  # the parent has gone, or goes
    except Exception as error:
        own = isinstance(error, SweepError)
        text = str(error) if own else f"NIXL: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send(("error", text))


def _hold(connection: Connection, plan: SweepPlan) -> None:
    buffer = Buffer(plan.memory, max(plan.sizes), plan.devices[0])
    buffer.fill()
    agent = _agent("holder", progress_thread=True)
    registered = _register(agent, buffer)
    held = _Held(agent.get_agent_metadata(), buffer.address, buffer.device)
    connection.send(("ready", held))
    with contextlib.suppress(EOFError, ConnectionError):
        connection.recv()  # until the parent closes
    agent.deregister_memory(registered)


def _read(connection: Connection, plan: SweepPlan) -> None:
    buffer = Buffer(plan.memory, max(plan.sizes), plan.devices[1])
    buffer.clear()
    # Its own polling makes progress: a thread beside it would only fight for a core.
    agent = _agent("reader", progress_thread=False)
    registered = _register(agent, buffer)
    held: _Held = connection.recv()
    reader = _Reader(agent, agent.add_remote_agent(held.metadata), held, buffer, plan)
    for size in plan.sizes:
        connection.send(("times", reader.times(size)))
    agent.deregister_memory(registered)


class _Reader:
    """Reads from one holder."""

    def __init__(
        self, agent: Any, remote: str, held: _Held, buffer: Buffer, plan: SweepPlan
    ) -> None:
        self._agent = agent
        self._remote = remote
        self._held = held
        self._buffer = buffer
        self._plan = plan

    def times(self, size: int) -> TransferTimes:
        """The repetitions of one size."""
        for _ in range(self._plan.warm_up):
            self._once(size)
        seconds = tuple(self._once(size) for _ in range(self._plan.repeats))
        self._buffer.clear()
        self._once(size)
        if not self._buffer.holds(size):
            raise SweepError(f"what arrived of {size} bytes is not what was sent")
        return TransferTimes(size, seconds)

    def _once(self, size: int) -> float:
        handle = self._agent.initialize_xfer(
            "READ",
            self._descriptors(self._buffer.address, self._buffer.device, size),
            self._descriptors(self._held.address, self._held.device, size),
            self._remote,
        )
        started_s = time.perf_counter()
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
            if time.perf_counter() - started_s > self._plan.transfer_limit_s:
                raise SweepError(f"{size} bytes took over {self._plan.transfer_limit_s:g} s")
        seconds = time.perf_counter() - started_s
        self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise SweepError(f"a transfer of {size} bytes ended as {state}")
        return seconds

    def _descriptors(self, address: int, device: int, size: int) -> Any:
        piece = self._plan.piece_bytes or size
        spans = [(address + at, min(piece, size - at), device) for at in range(0, size, piece)]
        return self._agent.get_xfer_descs(spans, self._buffer.kind.value)


def _agent(name: str, progress_thread: bool) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config

    config = nixl_agent_config(enable_prog_thread=progress_thread, backends=["UCX"])
    return nixl_agent(name, config)


def _register(agent: Any, buffer: Buffer) -> Any:
    span = (buffer.address, buffer.size, buffer.device, "")
    return agent.register_memory([span], buffer.kind.value)
