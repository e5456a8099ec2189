# SPDX-License-Identifier: Apache-2.0
"""What a start-up that hangs says it is waiting for."""

from __future__ import annotations

import pytest

from controller.runtime.launcher import ProcessSpec, Role
from controller.runtime.launcher.readiness import FrontendView, missing

pytestmark = pytest.mark.unit
URL = "http://127.0.0.1:8000"
MODEL = "equilibrium/tiny"


def spec(name: str, role: Role, endpoint: str | None = None, instances: int = 0) -> ProcessSpec:
    return ProcessSpec(name=name, role=role, argv=("x",), endpoint=endpoint, instances=instances)


SPECS = (
    spec("frontend", Role.FRONTEND),
    spec("router", Role.ROUTER, "d.prefill.generate", 1),
    spec("decode-0", Role.DECODE, "d.backend.generate", 2),
    spec("decode-1", Role.DECODE, "d.backend.generate", 1),
)


def test_silent_frontend_is_named_first() -> None:
    (phrase,) = missing(FrontendView(), URL, SPECS, MODEL)
    assert "does not answer at http://127.0.0.1:8000" in phrase
    assert "logs/frontend.log" in phrase


def test_every_pool_that_is_short_is_named_with_its_logs() -> None:
    view = FrontendView(answers=True, instances={"d.backend.generate": 2})
    assert missing(view, URL, SPECS, MODEL) == (
        "0 of 1 router registered at d.prefill.generate (logs/router.log)",
        "2 of 3 decode workers registered at d.backend.generate "
        "(logs/decode-0.log, logs/decode-1.log)",
    )


def test_unlisted_model_is_named_once_all_have_registered() -> None:
    instances = {"d.prefill.generate": 1, "d.backend.generate": 3}
    view = FrontendView(answers=True, models=("other",), instances=instances)
    (phrase,) = missing(view, URL, SPECS, MODEL)
    assert "lists other, not equilibrium/tiny" in phrase


def test_nothing_is_missing_when_all_are_there() -> None:
    instances = {"d.prefill.generate": 1, "d.backend.generate": 4}
    view = FrontendView(answers=True, models=(MODEL,), instances=instances)
    assert missing(view, URL, SPECS, MODEL) == ()


def test_early_stages_do_not_wait_for_the_model() -> None:
    view = FrontendView(answers=True)
    assert missing(view, URL, SPECS[:1], None) == ()
