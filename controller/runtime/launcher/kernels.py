# SPDX-License-Identifier: Apache-2.0
"""Compiling the router's and the workers' kernels once, before any process needs them.

    python -m controller.runtime.launcher.kernels

Owns: whether that has been done for these sources, doing it in a process of its own. Does not own:
the kernels, numba's disk cache.

Without it the first deployment after an installation would have every process compile the same
kernels at once, longer than `ready_timeout_s` on a small machine. numba's cache does not notice a
change in a file that a cached function only calls, so what older sources left there goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import controller

_ROOMS = ("costs", "routing", "routing/kernels")


def _package() -> Path:
    return Path(controller.__file__).parent


def stamp() -> Path:
    """The file that says: the kernels of just these sources are in the cache."""
    digest = hashlib.sha256(sys.version.encode())
    for room in _ROOMS:
        for source in sorted((_package() / room).glob("*.py")):
            digest.update(source.read_bytes())
    given = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(given) if given else _package() / "routing" / "kernels" / "__pycache__"
    return folder / f"compiled-{digest.hexdigest()[:16]}"


async def prepare(report: Callable[[str], None]) -> None:
    """Compile in a process of its own, unless that was done. A failure shows in the workers."""
    if stamp().exists():
        return
    report("compiling kernels, once after an installation or an update")
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controller.runtime.launcher.kernels", stdout=quiet, stderr=quiet
    )
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def drop_old() -> None:
    """What other sources have left in the cache beside the packages."""
    for room in _ROOMS:
        cache = _package() / room / "__pycache__"
        for left in (*cache.glob("*.nb[ic]"), *cache.glob("compiled-*")):
            with contextlib.suppress(OSError):
                left.unlink()


def compile_all() -> None:
    """Make what a router and an emulated worker make at their start."""
    from controller.costs.model import TableCost
    from controller.costs.tables import linear_tables
    from controller.routing.inflight import InFlightBound
    from controller.routing.registry import PLACEMENTS
    from controller.runtime.router.binding import Binding, DecodeLoads
    from controller.runtime.router.queues import PrefillQueues
    from controller.types import RoutingParams, Slo

    costs = TableCost(linear_tables(0.01, 1e-5, 1e-8, 1e-5, 1e-9, 2048, 0.001, 1, 1e9))
    for make in PLACEMENTS.values():
        make(costs, Slo(1000.0, 50.0), RoutingParams(), Random(0))
    PrefillQueues(InFlightBound(2048), 10.0)
    Binding(DecodeLoads(), Random(0))


def main() -> int:
    """Compile, then say so."""
    done = stamp()
    drop_old()
    compile_all()
    with contextlib.suppress(OSError):  # a folder that is read only: asked again next time
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
