# SPDX-License-Identifier: Apache-2.0
"""Does a worker pad its decode steps to CUDA graph sizes? Found out from its step times.

Owns: vLLM's usual sizes and the choice. Does not own: the fit, what padding does (kernels).

A padded step takes as long as the size above it. On dense models that hardly shows; a
mixture-of-experts model reads more experts with every token, so its steps jump at the sizes, and
a fit that does not know them smears the jumps.
"""

from __future__ import annotations

from dataclasses import replace

from controller.costs.fit import FitOptions, StepFit, fit_step_tables
from controller.costs.measurements import StepMeasurements

VLLM_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""What vLLM captures by default (cudagraph_capture_sizes, up to 512 tokens)."""

_CLEARLY = 0.9
"""Sizes are believed when they lower the held-out error below this share of it."""


def fit_finding_sizes(m: StepMeasurements, options: FitOptions) -> StepFit:
    """The fit without padding, or with vLLM's usual sizes if that is clearly better.

    Both are judged on the same held-out steps. Raises FitError as fit_step_tables does.
    """
    plain = fit_step_tables(m, replace(options, capture_sizes=()))
    padded = fit_step_tables(m, replace(options, capture_sizes=VLLM_SIZES))
    return padded if _error(padded) < _CLEARLY * _error(plain) else plain


def _error(fitted: StepFit) -> float:
    overall = fitted.errors.overall
    return overall.median_pct + overall.p95_pct / 4
