# SPDX-License-Identifier: Apache-2.0
"""What one run of the load client is asked to do, and how it reports while it runs.

Times that end in `_s` are emulated seconds: wall seconds divided by `time_scale`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from controller.errors import UserError
from controller.types import Slo

DEFAULT_PHASE = "all"
OTHER_PHASE = "other"
"""Label of arrivals outside every named phase."""


class Endpoint(str, Enum):
    """Which OpenAI endpoint is called."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Below the server's address."""
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Phase:
    """A label for sessions that arrive in [start_s, end_s) of the replayed trace."""

    name: str
    start_s: float
    end_s: float


def parse_phase(text: str) -> Phase:
    """`name=START:END` in trace seconds; an empty END means to the end."""
    match = re.fullmatch(r"([A-Za-z0-9_.-]{1,40})=([^:]*):([^:]*)", text)
    try:
        if match is None:
            raise ValueError
        name = match[1]
        start_s, end_s = float(match[2] or 0), float(match[3] or math.inf)
        if not 0 <= start_s < end_s:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--phase {text!r}: give name=START:END in trace seconds, START below END"
        ) from None
    return Phase(name=name, start_s=start_s, end_s=end_s)


def phase_of(arrival_s: float, phases: Sequence[Phase]) -> str:
    """The label of an arrival; of overlapping phases the first named one counts."""
    if not phases:
        return DEFAULT_PHASE
    inside = (phase.name for phase in phases if phase.start_s <= arrival_s < phase.end_s)
    return next(inside, OTHER_PHASE)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One run. `url` is the server's address with or without `/v1`."""

    url: str
    slo: Slo
    model: str | None = None
    """None: the first model that the server lists."""
    endpoint: Endpoint = Endpoint.CHAT
    seed: int = 0
    """Of the prompt texts: a new seed makes prompts that no prefix cache knows."""
    chars_per_token: float = 1.0
    """Text that makes one token: 1 for the byte-level tiny model, about 4 for usual BPE."""
    ignore_eos: bool = True
    plain: bool = False
    """Send standard OpenAI fields only; some servers refuse unknown ones."""
    time_scale: float = 1.0
    """Wall seconds per emulated second."""
    timeout_s: float = 600.0
    """Of one request, from sending to its last token."""
    time_limit_s: float | None = None
    """Of the run; what is unfinished then is cancelled and counted so."""
    phases: tuple[Phase, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    """Further request headers, for instance of a gateway."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https?://[^\s/][^\s]*", self.url):
            raise UserError(f"--url {self.url!r}: give http://HOST:PORT")
        positive = {
            "--slo-ttft-ms": self.slo.ttft_ms,
            "--slo-itl-ms": self.slo.itl_ms,
            "--chars-per-token": self.chars_per_token,
            "--time-scale": self.time_scale,
            "--timeout": self.timeout_s,
            "--time-limit": self.time_limit_s,
        }
        for name, value in positive.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} {value}: give a number above 0")

    @property
    def base_url(self) -> str:
        """The address without a trailing slash or `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. `done` = ok + failed; the rest of `intended` is still to come."""

    elapsed_s: float
    intended: int
    sent: int
    running: int
    ok: int
    failed: int
    late_max_ms: float
    """Largest delay between the due and the real sending of a request: a slow client."""
    finished: bool

    @property
    def done(self) -> int:
        """Requests with an outcome."""
        return self.ok + self.failed
