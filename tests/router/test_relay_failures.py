# SPDX-License-Identifier: Apache-2.0
"""What the errors of Dynamo's Python client mean (texts as 1.4.2 gives them)."""

import pytest
from dynamo.llm.exceptions import HttpError, InvalidArgument, StreamIncomplete, Unknown

from controller.runtime.router.failures import (
    StreamBrokenError,
    for_frontend,
    is_break,
    is_request_fault,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Disconnected: Stream ended before generation completed"),
        Exception("CannotConnect: TCP request to 127.0.0.1:1 failed"),
        Exception("CannotConnect: instance_id=5 not found for endpoint a/b/c"),
        Exception("Connection refused (os error 111)"),
        ValueError("BackendEngineShutdown: going"),
        ValueError("BackendStreamIncomplete: half"),
        ConnectionResetError("reset"),
        StreamBrokenError("silent"),
        StreamIncomplete("half"),
    ],
)
def test_a_worker_that_is_gone_is_a_break(error):
    assert is_break(error)
    assert not is_request_fault(error)
    answer = for_frontend(error)
    assert isinstance(answer, HttpError) and answer.code == 503


@pytest.mark.parametrize(
    "error",
    [
        ValueError("BackendInvalidArgument: ValueError: prompt of 9 tokens exceeds 8"),
        InvalidArgument("ValueError: prompt of 9 tokens exceeds 8"),
    ],
)
def test_a_bad_request_is_passed_on_as_one(error):
    assert is_request_fault(error)
    assert not is_break(error)
    answer = for_frontend(error)
    assert isinstance(answer, InvalidArgument)
    assert str(answer) == "ValueError: prompt of 9 tokens exceeds 8"


def test_a_workers_own_failure_stays_a_failure():
    error = ValueError("BackendUnknown: RuntimeError: boom")
    assert not is_break(error) and not is_request_fault(error)
    assert isinstance(for_frontend(error), Unknown)


def test_a_workers_http_status_reaches_the_client():
    answer = for_frontend(ValueError('BackendUnknown: {"message":"slow down","code":429}'))
    assert isinstance(answer, HttpError)
    assert (answer.code, answer.message) == (429, "slow down")
    assert for_frontend(answer) is answer


def test_an_error_of_our_own_is_not_dressed_up():
    error = KeyError("bug")
    assert for_frontend(error) is error
    assert not is_break(error)
