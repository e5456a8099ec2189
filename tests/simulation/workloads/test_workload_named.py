# SPDX-License-Identifier: Apache-2.0
"""Synthetic workloads by name."""

from __future__ import annotations

import numpy as np
import pytest

from controller.simulation.traces import TraceError
from controller.simulation.workloads.named import SYNTHETIC, synthetic

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", SYNTHETIC)
def test_every_name_draws_by_its_defaults_and_by_seed(name):
    load, again, other = (synthetic(name, seed) for seed in (3, 3, 4))
    assert len(load) > 10
    assert np.array_equal(load.prompt_tokens, again.prompt_tokens)
    assert np.array_equal(load.arrival_s, again.arrival_s, equal_nan=True)
    drawn = [
        np.array_equal(getattr(load, column), getattr(other, column), equal_nan=True)
        for column in ("arrival_s", "prompt_tokens", "output_tokens", "block_ids")
    ]
    assert not all(drawn)


def test_parameters_change_what_they_name():
    few, many = (len(synthetic(f"poisson,rate={rate},duration=100", 0)) for rate in (1, 10))
    assert 5 * few < many
    load = synthetic("closed_loop,concurrency=3,requests=12,prompt=64", 0)
    assert (load.after < 0).sum() == 3
    assert (load.prompt_tokens == 64).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing", "known: poisson"),
        ("gaia,speed=1", "known: rate=1, duration=300"),
        ("gaia,rate", "'rate' is not known"),
        ("gaia,rate=nan", "give a number"),
        ("rollouts,samples=1.5", "whole number"),
        ("poisson,rate=1e9,duration=1e9", "sessions"),
    ],
)
def test_what_is_not_known_is_one_line(text, expected):
    with pytest.raises(TraceError, match=r"^synthetic:") as refused:
        synthetic(text, 0)
    assert expected in str(refused.value) and "\n" not in str(refused.value)
