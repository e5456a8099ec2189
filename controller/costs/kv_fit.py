# SPDX-License-Identifier: Apache-2.0
"""Fitting Hockney's alpha + bytes/bandwidth to timed KV transfers (papers/ampd.md section 2).

Pure. Owns: the law's two numbers, how well they fit, the residual at every size. Does not own:
timing transfers (controller.runtime.profiling), profile files (profile.py).

Every size counts alike: the residuals are those of the logarithms, so that alpha is not lost
beside the seconds of the largest transfers, and too long is as wrong as too short. Huber's loss
keeps one odd size from bending the law. A size is represented by the median of its repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from controller.errors import UserError

_HUBER_LOG = 0.1
"""Residual of a logarithm beyond which a size loses influence."""
_MIN_SIZES = 3

Floats = NDArray[np.float64]


class KvFitError(UserError):
    """Transfers that say nothing about the law; the message tells what is missing."""


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Repeated transfers of one size."""

    bytes_moved: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SizeFit:
    """One size: what was measured and what the law says. Seconds."""

    bytes_moved: int
    median_s: float
    fastest_s: float
    slowest_s: float
    predicted_s: float

    @property
    def residual(self) -> float:
        """Relative: predicted over the measured median, less one."""
        return self.predicted_s / self.median_s - 1.0


@dataclass(frozen=True, slots=True)
class KvFit:
    """`latency_s + bytes / bandwidth_bytes_s`, over the sizes it was fitted on."""

    latency_s: float
    bandwidth_bytes_s: float
    r_squared: float
    """Share of the variance of the medians that the law explains; the largest sizes rule it."""
    r_squared_log: float
    """The same of the logarithms: every size counts alike."""
    sizes: tuple[SizeFit, ...]

    def transfer_s(self, bytes_moved: float) -> float:
        """Seconds to move `bytes_moved` bytes; 0 for none."""
        return self.latency_s + bytes_moved / self.bandwidth_bytes_s if bytes_moved > 0 else 0.0


def fit_transfers(times: Sequence[TransferTimes]) -> KvFit:
    """The law through at least three sizes. Raises KvFitError."""
    ordered = sorted(times, key=lambda each: each.bytes_moved)
    _check(ordered)
    sizes = np.array([each.bytes_moved for each in ordered], dtype=np.float64)
    medians = np.array([np.median(each.seconds) for each in ordered], dtype=np.float64)
    latency_s, bandwidth = _solve(sizes, medians)
    predicted = latency_s + sizes / bandwidth
    return KvFit(
        latency_s=latency_s,
        bandwidth_bytes_s=bandwidth,
        r_squared=_r_squared(medians, predicted),
        r_squared_log=_r_squared(np.log(medians), np.log(predicted)),
        sizes=tuple(
            SizeFit(
                bytes_moved=each.bytes_moved,
                median_s=float(median),
                fastest_s=min(each.seconds),
                slowest_s=max(each.seconds),
                predicted_s=float(law),
            )
            for each, median, law in zip(ordered, medians, predicted, strict=True)
        ),
    )


def _check(times: Sequence[TransferTimes]) -> None:
    if len({each.bytes_moved for each in times}) < len(times):
        raise KvFitError("a transfer size is there twice; give all its times together")
    if len(times) < _MIN_SIZES:
        raise KvFitError(f"{len(times)} transfer sizes; a fit needs at least {_MIN_SIZES}")
    for each in times:
        if each.bytes_moved < 1 or not each.seconds:
            raise KvFitError(f"size {each.bytes_moved} bytes has no times, or is not positive")
        if not all(math.isfinite(second) and second > 0 for second in each.seconds):
            raise KvFitError(f"size {each.bytes_moved} bytes has a time that is not positive")


def _solve(sizes: Floats, medians: Floats) -> tuple[float, float]:
    """Latency in s and bandwidth in bytes/s, both from 0 up.

    Unknowns in units of the data, so that the solver sees numbers near 1.
    """
    unit_s, unit_s_per_byte = float(medians.min()), float(medians.max() / sizes.max())

    def residuals(unknowns: Floats) -> Floats:
        law = unknowns[0] * unit_s + unknowns[1] * unit_s_per_byte * sizes
        off: Floats = np.log(law / medians)
        return off

    solution = least_squares(
        residuals,
        x0=[0.5, 0.9],
        bounds=([0.0, 1e-9], [np.inf, np.inf]),
        loss="huber",
        f_scale=_HUBER_LOG,
        x_scale=[1.0, 1.0],
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    latency, per_byte = solution.x
    return float(latency * unit_s), float(1.0 / (per_byte * unit_s_per_byte))


def _r_squared(measured: Floats, predicted: Floats) -> float:
    total = float(np.sum((measured - measured.mean()) ** 2))
    if total == 0.0:
        return 1.0 if np.allclose(measured, predicted) else 0.0
    return 1.0 - float(np.sum((measured - predicted) ** 2)) / total
