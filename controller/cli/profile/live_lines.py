# SPDX-License-Identifier: Apache-2.0
"""A live fit in words, for the terminal and for a profile's provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.costs.live_fit import LiveState

_MIN_KIND = 20
_NOTABLE_RATIO = 0.1


def progress(name: str, state: LiveState) -> str:
    """What the newest fit rests on, how good it is, what has changed."""
    error = state.current
    shown = "not known yet"
    if error.count:
        shown = f"{error.median_pct:.1f} % median, {error.p95_pct:.1f} % p95 of {error.count}"
    parts = [f"{name}: fitted to {state.kept:,} of {state.passes:,} passes, current error {shown}"]
    if state.drifts:
        parts.append(f"{len(state.drifts)} changes of speed, the last x{state.drifts[-1][1]:.2f}")
    return "; ".join([*parts, *_unequal(state)])


def _unequal(state: LiveState) -> list[str]:
    """Workers that differ from the fit of their pool."""
    if len(state.worker_ratios) < 2:
        return []
    return [
        f"worker {worker} takes {ratio:.2f} times as long"
        for worker, ratio in state.worker_ratios.items()
        if abs(ratio - 1) > _NOTABLE_RATIO
    ]


def seen(state: LiveState) -> str:
    """What the passes were."""
    return f"{state.decode_passes:,} decode, {state.prefill_passes:,} with prompt tokens"


def too_few(name: str, state: LiveState) -> str:
    """Why there is no fit."""
    left = [f"{count:,} {reason.value}" for reason, count in state.left_out.items()]
    return (
        f"{name}: {state.passes:,} passes that count are too few for a fit "
        f"(left out: {', '.join(left) or 'none'})"
    )


def warnings(state: LiveState) -> list[str]:
    """What the profile says without having seen it."""
    kinds = (("decode", state.decode_passes), ("prefill", state.prefill_passes))
    return [
        f"only {count} {kind} passes: what this profile says of {kind} steps is not measured"
        for kind, count in kinds
        if count < _MIN_KIND
    ]
