# SPDX-License-Identifier: Apache-2.0
"""Kills whole process groups when the launcher is gone, however it went.

Usage: python guard.py  (reads lines from stdin: `+PGID` to watch a group, `-PGID` to forget it)

leash.py takes the launched processes themselves down with the launcher. Their own children (a
vLLM engine core, for one, outlives a killed parent) are in the same process group; the end of
file on stdin, which the kernel delivers even after `kill -9` of the launcher, kills what is left
of the groups. Standard library only and run by path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> int:
    """Follow the groups until the launcher's end of the pipe closes, then kill the rest."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
