# SPDX-License-Identifier: Apache-2.0
"""Act or shadow: whether the router's decisions count, switched while it runs.

In shadow the router decides and logs, and the prefill goes where Dynamo's own KV router would
have sent it, at once and without our queues. What no router may do stays undone in both: n > 1
and an empty pool go local (docs/handover.md).

The mode is one word in a file of the run folder: it can be read and changed by hand, survives a
restart of the router, and needs no port.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from controller.errors import UserError

_FILE = "mode"


class Mode(str, Enum):
    """What the router does with its decisions."""

    ACT = "act"
    SHADOW = "shadow"


class ModeFile:
    """The mode of one router; `refresh` is called now and then, `shadow` is free to ask."""

    def __init__(self, run_dir: Path, default: Mode) -> None:
        self._path = run_dir / _FILE
        self._mode = default
        if self._path.exists():
            self.refresh()
        else:
            self._path.write_text(default.value + "\n", encoding="utf-8")

    @property
    def shadow(self) -> bool:
        """Whether decisions are only logged."""
        return self._mode is Mode.SHADOW

    def refresh(self) -> None:
        """Read the file again; what cannot be read or understood changes nothing."""
        try:
            self._mode = Mode(self._path.read_text(encoding="utf-8").strip())
        except (OSError, ValueError):
            return


def set_mode(run_dir: Path, mode: Mode) -> None:
    """Switch a router by its run folder. Raises UserError when there is none."""
    if not (run_dir / _FILE).exists():
        raise UserError(f"no router has run in {run_dir}: give its run folder (runs/latest)")
    scratch = run_dir / f"{_FILE}.writing"
    scratch.write_text(mode.value + "\n", encoding="utf-8")
    scratch.replace(run_dir / _FILE)


def get_mode(run_dir: Path) -> Mode:
    """The mode that a run folder says. Raises UserError when it says none."""
    try:
        return Mode((run_dir / _FILE).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        raise UserError(
            f"no router has run in {run_dir}: give its run folder (runs/latest)"
        ) from None
