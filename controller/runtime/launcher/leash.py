# SPDX-License-Identifier: Apache-2.0
"""Replaces itself with a program that dies when the launcher dies (Linux).

Usage: python leash.py LAUNCHER_PID PROGRAM [ARGUMENT ...]

Standard library only and run by path, so that it costs milliseconds. An exec'd program and not a
`preexec_fn`: no Python code runs between fork and exec of a process that may have threads. The
kernel keeps the death signal across exec. It reaches this one process; its descendants are
guard.py's business. The signal is tied to the launcher's *thread* that started the process: the
event loop's, which lives as long as the deployment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Tie this process to its parent, then become the program."""
    launcher_pid, program = int(argv[1]), argv[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != launcher_pid:
        return 1  # the launcher died before the tie was made
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a shell's `&` or nohup may have had them ignored
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"cannot start {program[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv))
