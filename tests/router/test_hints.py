# SPDX-License-Identifier: Apache-2.0
"""Priorities and objectives that a request names."""

import pytest

from controller.runtime.router.hints import Objectives, jump_s, urgency
from controller.types import Slo

pytestmark = pytest.mark.unit

DEFAULT, GOLD = Slo(1000, 50), Slo(300, 30)


def test_dynamos_priority_hints_are_read_from_the_routing_block():
    request = {"routing": {"priority_jump": 3.0, "strict_priority": 2, "priority": 3}}
    assert (urgency(request), jump_s(request)) == (2, 3.0)


@pytest.mark.parametrize("routing", [None, {}, {"priority_jump": None, "strict_priority": None}])
def test_a_request_without_hints_has_none(routing):
    assert (urgency({"routing": routing}), jump_s({"routing": routing})) == (0, 0.0)
    assert (urgency({}), jump_s({})) == (0, 0.0)


@pytest.mark.parametrize("bad", ["x", float("nan"), float("inf"), True, [], -1])
def test_nonsense_is_no_hint(bad):
    assert urgency({"routing": {"strict_priority": bad}}) == 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, DEFAULT),
        ({"annotations": ["tenant:gold"]}, GOLD),
        ({"annotations": ["tenant:nobody"]}, DEFAULT),
        ({"annotations": ["ttft_target:500"]}, Slo(500, 50)),
        ({"annotations": ["tenant:gold", "itl_target:80"]}, Slo(300, 80)),
        ({"annotations": ["x-bypass", "a:b", "ttft_target:soon", "itl_target:-1"]}, DEFAULT),
        ({"extra_args": {"ttft_target": 700, "itl_target": 70}}, Slo(700, 70)),
        ({"extra_args": {"ttft_target": 700}, "annotations": ["ttft_target:500"]}, Slo(500, 50)),
        ({"extra_args": {"keep": "me"}, "annotations": None}, DEFAULT),
    ],
)
def test_limits_are_its_own_or_its_tenants_or_the_deployments(request_, expected):
    assert Objectives(DEFAULT, {"gold": GOLD}).of(request_) == expected
