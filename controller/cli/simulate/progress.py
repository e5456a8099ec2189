# SPDX-License-Identifier: Apache-2.0
"""Notes and a progress bar on the error stream: on a terminal only, and not when quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Meter:
    """One a command; `run` once a simulation."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self.shown = not quiet and self._console.is_terminal
        """Whether a bar is there to be fed."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self.shown,
        )

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def note(self, line: str) -> None:
        """One line that the user should know of."""
        if not self._quiet:
            self._console.print(f"note: {line}")

    @contextmanager
    def run(self, name: str, requests: int) -> Iterator[Callable[[int], None]]:
        """A bar for one run; call what is yielded with the number of ended requests."""
        task = self._bar.add_task(name, total=requests)
        try:
            yield lambda ended: self._bar.update(task, completed=ended)
        finally:
            self._bar.remove_task(task)
