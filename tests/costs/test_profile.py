# SPDX-License-Identifier: Apache-2.0
"""Profile files: units, and one line that names the field when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.costs.profile import ProfileError, parse_profile

pytestmark = pytest.mark.unit

GOOD = {
    "schema": "equilibrium.profile/1",
    "name": "round",
    "provenance": "hand-set for this test",
    "license": "Apache-2.0",
    "base_ms": 10.0,
    "per_sequence_ms": 1.0,
    "per_context_token_ms": 0.01,
    "per_prefill_token_ms": 0.1,
    "per_prefill_pair_ms": 0.001,
    "max_chunk_tokens": 1024,
    "kv_latency_ms": 2.0,
    "kv_bytes_per_token": 1000,
    "kv_bandwidth_gb_s": 1.0,
}


def failure(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "some.json")
    return str(caught.value)


def changed(**fields: object) -> str:
    return json.dumps({**GOOD, **fields})


def test_units_are_converted_and_slowdown_touches_compute_only():
    profile = parse_profile(json.dumps(GOOD), "some.json")
    plain, slow = profile.cost_model(), profile.cost_model(slowdown=3.0)
    assert plain.step_s(2, 100, 10, 1000.0) == pytest.approx(0.010 + 0.002 + 0.001 + 0.001 + 0.001)
    assert slow.step_s(2, 100, 10, 1000.0) == pytest.approx(3 * plain.step_s(2, 100, 10, 1000.0))
    assert plain.kv_transfer_s(10) == pytest.approx(0.002 + 10 * 1000 / 1e9)
    assert slow.kv_transfer_s(10) == plain.kv_transfer_s(10)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_named(field: str):
    text = json.dumps({key: value for key, value in GOOD.items() if key != field})
    message = failure(text)
    assert f"profile some.json: {field}: Field required" in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "equilibrium.profile/2"),
        ("name", ""),
        ("base_ms", 0.0),
        ("base_ms", float("nan")),
        ("base_ms", "fast"),
        ("per_sequence_ms", -1.0),
        ("per_sequence_ms", float("nan")),
        ("per_context_token_ms", float("inf")),
        ("per_prefill_pair_ms", -0.001),
        ("max_chunk_tokens", 0),
        ("max_chunk_tokens", 1.5),
        ("kv_bandwidth_gb_s", 0.0),
        ("kv_bandwidth_gb_s", None),
        ("per_token_ms", 1.0),
    ],
)
def test_a_bad_field_is_named_in_one_line(field: str, value: object):
    message = failure(changed(**{field: value}))
    assert message.startswith(f"profile some.json: {field}: ")
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "not json", "[]"])
def test_what_is_not_a_profile_is_named_as_a_file(text: str):
    message = failure(text)
    assert message.startswith("profile some.json: file: ")
    assert "\n" not in message


def test_every_shipped_profile_parses():
    folder = Path(__file__).parents[2] / "dynamo_configs" / "profiles"
    paths = sorted(folder.glob("*.json"))
    assert paths
    for path in paths:
        assert parse_profile(path.read_text(), path.name).name == path.stem
