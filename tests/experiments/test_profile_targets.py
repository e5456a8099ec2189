# SPDX-License-Identifier: Apache-2.0
"""What is fitted, and that the shipped profiles are those of the list."""

from __future__ import annotations

import json

import pytest

from analysis.silicon import profile_key
from controller.runtime.resources import Kind, read_profile, shipped
from experiments.profile_targets import TARGETS, Precision

pytestmark = pytest.mark.unit

REQUIRED = (
    [f"llama31_70b_tp{tp}_{gpu}" for tp in (4, 8) for gpu in ("b200", "h100", "h200")]
    + [f"qwen3_32b_tp{tp}_{gpu}" for tp in (1, 2, 4, 8) for gpu in ("h100", "h200")]
    + [f"mixtral_8x7b_tp{tp}_{gpu}" for tp in (2, 4, 8) for gpu in ("h100", "h200")]
    + ["nemotron4_340b_tp8_b200", "deepseek_v2_lite_tp1_a100"]
)


def test_names_are_unique() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("name", REQUIRED)
def test_the_papers_models_are_fitted(name: str) -> None:
    assert name in {target.name for target in TARGETS}


def test_known_bad_tables_are_not_used() -> None:
    bad = {("h100_sxm", "vllm", "0.14.0"), ("b200_sxm", "vllm", "0.19.0")}
    used = {(t.source.system, t.source.backend, t.source.version) for t in TARGETS}
    assert not used & bad


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_ships_as_a_small_profile_with_its_origin(target) -> None:
    profile = read_profile(target.name)
    assert shipped(Kind.PROFILE)[target.name].stat().st_size < 8_000
    assert profile.name == target.name
    assert profile.license == "Apache-2.0"
    assert f"{target.source.backend} {target.source.version}" in profile.provenance
    assert target.note.strip() in profile.provenance
    # Largest where the operator tables themselves fall with size and a profile may not (3.3 %).
    assert profile.fit_error is not None and profile.fit_error.overall.median_pct < 5
    key = profile_key(profile)
    assert key is not None
    assert (key.backend, key.precision, key.tp) == (
        target.source.backend,
        target.precision.value,
        target.tp,
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_cached_bytes_are_those_of_the_models_shape(target) -> None:
    element = 2 if target.precision is Precision.BF16 else 1
    transfer = read_profile(target.name).kv_transfer
    assert transfer.bytes_per_token == pytest.approx(element * target.shape.cached_elements)


def test_stand_ins_say_so() -> None:
    for target in TARGETS:
        if target.shape.label.startswith(("Qwen3", "Mixtral")) and target.note:
            assert "H20" in read_profile(target.name).provenance
    for name in ("nemotron4_340b_tp8_b200", "deepseek_v2_lite_tp1_a100"):
        assert "tand-in" in read_profile(name).provenance


def test_profiles_are_valid_json_texts() -> None:
    for target in TARGETS:
        json.loads(shipped(Kind.PROFILE)[target.name].read_text())
