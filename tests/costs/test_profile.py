# SPDX-License-Identifier: Apache-2.0
"""Profile files: units, round trips, and one line that names the field when they are wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from test_cost_model import rich_tables

from controller.costs.checks import problem
from controller.costs.errors_report import Ape, FitErrors, StepKind
from controller.costs.model import TableCost
from controller.costs.profile import (
    Engine,
    Parallelism,
    Profile,
    ProfileError,
    dump_profile,
    parse_profile,
)
from controller.costs.tables import linear_tables

pytestmark = pytest.mark.unit

PROFILES = Path(__file__).parents[2] / "dynamo_configs" / "profiles"
ERRORS = FitErrors(Ape(1.5, 9.0, 100), "every second row", {StepKind.MIXED: Ape(2.0, 11.0, 60)})
ENGINE = Engine(name="vllm", version="0.19.0", max_num_batched_tokens=512)


def profile(**changes: Any) -> Profile:
    fields = {
        "name": "rich",
        "provenance": "hand-set for this test",
        "license": "Apache-2.0",
        "model": "m",
        "gpu": "g",
        "precision": "bf16",
        "parallelism": Parallelism(tp=2),
        "engine": ENGINE,
    }
    tables = changes.pop("tables", rich_tables())
    return Profile.from_fit(tables, ERRORS, **{**fields, **changes})


GOOD = json.loads(dump_profile(profile()))


def failure(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "some.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(path: str, value: object) -> str:
    raw = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    node = raw
    for part in parents:
        node = node[part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return json.dumps(raw)


def test_a_profile_survives_its_file_in_json_and_in_yaml():
    text = dump_profile(profile())
    for again in (parse_profile(text, "x"), parse_profile(yaml.safe_dump(json.loads(text)), "x")):
        for mine, its in zip(again.tables(), profile().tables(), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-6)
        assert again.fit_error == profile().fit_error
        assert again.parallelism.tp == 2
        assert dump_profile(again) == text


def test_units_are_converted_and_slowdown_touches_compute_only():
    tables, cost = rich_tables(), profile().cost_model()
    assert tables.dense_s[-1] == pytest.approx(0.040)
    assert GOOD["step"]["dense"]["ms"][-1] == 40
    slow = profile().cost_model(slowdown=3.0)
    assert slow.step_s(2, 100, 10, 1000.0) == pytest.approx(3 * cost.step_s(2, 100, 10, 1000.0))
    assert slow.kv_transfer_s(10) == cost.kv_transfer_s(10) == pytest.approx(0.001 + 0.01)


@pytest.mark.parametrize(
    "path",
    [
        *(
            name
            for name in GOOD
            if name not in ("fit_error", "speculation")  # null and absent mean the same
        ),
        "step.dense",
        "step.decode.context",
        "step.mixed.overlap",
        "kv_transfer.bandwidth_gb_s",
        "engine.max_num_batched_tokens",
    ],
)
def test_a_missing_field_is_named(path: str):
    assert f"profile some.json: {path}: Field required" in failure(changed(path, None))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema", "equilibrium.profile/1", "schema"),
        ("name", "", "name"),
        ("fast", 1, "fast"),
        ("parallelism.tp", 0, "parallelism.tp"),
        ("step.dense.ms", [10, math.nan, 40], "step.dense.ms.1"),
        ("step.dense.ms", [10, -1, 40], "step.dense.ms.1"),
        ("step.dense.ms", ["fast", 11, 40], "step.dense.ms.0"),
        ("step.dense.ms", [10, 9, 40], "step.dense.ms"),
        ("step.dense.ms", [10, 11], "step.dense.ms"),
        ("step.dense.tokens", [1, 64, 64], "step.dense.tokens"),
        ("step.decode.ms", [[1, 1, 4], [1, 3, 20], [2, 10, 19]], "step.decode.ms"),
        ("step.decode.ms", [[1, 1, 4], [1, 3], [2, 10, 80]], "step.decode"),
        ("step.prefill.ms", [[1, 1, 9], [1, 2, 10]], "step.prefill"),
        ("step.prefill.ms", [[1, 1, 9], [1, 2, 10], [2, 5, math.inf]], "step.prefill.ms.2.2"),
        ("step.mixed.share", [0.1, 0.5, 1], "step.mixed.share"),
        ("step.mixed.chunk", [17, 512], "step.mixed.chunk"),
        ("step.mixed.overlap", [[[1, 0.5, 1]] * 2, [[1, 0.4, 1]] * 2], "step.mixed.overlap"),
        ("step.mixed.overlap", [[[1, 1.2, 1]] * 2, [[1, 0.5, 1]] * 2], "step.mixed.overlap"),
        ("kv_transfer.bandwidth_gb_s", 0, "kv_transfer.bandwidth_gb_s"),
        ("engine.capture_sizes", [4, 2], "engine.capture_sizes"),
        ("speculation", {"verified_tokens": 2, "emitted_tokens": 2.5}, "speculation"),
    ],
)
def test_a_bad_field_is_named_in_one_line(path: str, value: object, named: str):
    assert failure(changed(path, value)).startswith(f"profile some.json: {named}: ")


@pytest.mark.parametrize("text", ["", "not json", "[]", "a: [", "{"])
def test_what_is_not_a_profile_is_named_as_a_file(text: str):
    assert failure(text).startswith("profile some.json: file: ")


def test_tables_that_break_a_rule_make_no_profile():
    with pytest.raises(ProfileError, match=r"step\.dense\.ms: not monotone"):
        profile(tables=rich_tables(dense_s=rich_tables().dense_s[::-1].copy()))


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.*")), ids=lambda path: path.stem)
def test_every_shipped_profile_parses_is_small_and_keeps_the_rules(path: Path):
    text = path.read_text(encoding="utf-8")
    found = parse_profile(text, path.name)
    assert found.name == path.stem
    assert problem(found.tables()) is None
    assert len(text) < 16_000


def test_the_illustrative_profile_predicts_what_it_did_in_its_first_schema():
    path = PROFILES / "dense70b_tp4.json"
    cost = parse_profile(path.read_text(encoding="utf-8"), path.name).cost_model()
    first = TableCost(linear_tables(0.015, 2e-5, 3e-8, 5.23e-5, 9e-10, 2048, 0.002, 327680, 25e9))
    for shape in ((1, 100, 0, 0.0), (256, 524288, 0, 0.0), (0, 0, 512, 1e6), (32, 65536, 700, 3e6)):
        assert cost.step_s(*shape) == pytest.approx(first.step_s(*shape), rel=1e-12)
    assert cost.prefill_s(100, 8192) == pytest.approx(first.prefill_s(100, 8192), rel=1e-12)
    assert cost.kv_transfer_s(1000) == first.kv_transfer_s(1000)
