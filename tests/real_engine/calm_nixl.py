# SPDX-License-Identifier: Apache-2.0
"""Let NIXL's progress thread sleep in a test environment: `calm_nixl.py ENVIRONMENT`.

NIXL 1.5 has its UCX progress thread poll without a pause, one whole core for each worker. On a
machine with two cores a prefill and a decode worker then leave nothing for Dynamo: the first
hand-shakes time out and workers lose their discovery lease. A pause of a millisecond costs a
transfer that much at most, since the thread wakes up for events anyway.
"""

from __future__ import annotations

import sys
from pathlib import Path

BUSY = "agent_config.pthrDelay = 0\n"
CALM = "agent_config.pthrDelay = 1000\n"


def calm(environment: Path) -> int:
    """Rewrite the pause in an environment's NIXL; the number of files that have it now."""
    files = sorted(environment.glob("lib/python3*/site-packages/nixl*/_api.py"))
    calmed = 0
    for path in files:
        text = path.read_text()
        if BUSY in text:
            path.write_text(text.replace(BUSY, CALM))
        calmed += CALM in path.read_text()
    return calmed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: calm_nixl.py ENVIRONMENT")
    if not calm(Path(sys.argv[1])):
        sys.exit(f"{sys.argv[1]}: no NIXL with a progress thread's pause in it; has it moved?")
