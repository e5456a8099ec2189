# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.runtime.router.handover import (
    BYPASS_ANNOTATION,
    decode_request,
    forwarded_request,
    is_handover,
    local_answer,
    release_request,
    unsupported_backend,
)

pytestmark = pytest.mark.unit

HANDOVER = {"disaggregated_params": {"kv_transfer_params": {"handle": 1}}}


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"disaggregated_params": None},
        {"disaggregated_params": {}},
        {"disaggregated_params": {"kv_transfer_params": None}},
        {"disaggregated_params": "text"},
        local_answer(),
    ],
)
def test_what_is_no_hand_over(chunk):
    assert not is_handover(chunk)


def test_the_routers_own_ranks_never_reach_a_worker_and_the_rest_does():
    request = {"routing": {"dp_rank": 1, "prefill_dp_rank": 1, "priority": 3}, "other": {"a": 1}}
    sent = forwarded_request(request, 9)
    assert sent == {"routing": {"priority": 3, "prefill_worker_id": 9}, "other": {"a": 1}}
    assert request["routing"]["dp_rank"] == 1


def test_a_local_prefill_carries_the_bypass_annotation_and_no_prefill_result():
    sent = decode_request({"annotations": ["mine"]}, local_answer())
    assert sent["annotations"] == ["mine", BYPASS_ANNOTATION]
    assert "prefill_result" not in sent


def test_a_hand_over_goes_to_the_decode_worker_as_it_came():
    chunk = HANDOVER | {"completion_usage": {"prompt_tokens_details": {"cached_tokens": 5}}}
    sent = decode_request({"annotations": ["mine"]}, chunk)
    assert sent["annotations"] == ["mine"]
    assert sent["prefill_result"] == {
        "disaggregated_params": HANDOVER["disaggregated_params"],
        "prompt_tokens_details": {"cached_tokens": 5},
    }


def test_a_release_asks_for_one_token():
    sent = release_request({"stop_conditions": {"max_tokens": 500, "stop": ["x"]}}, HANDOVER)
    assert sent["stop_conditions"] == {"max_tokens": 1, "stop": ["x"]}


@pytest.mark.parametrize(
    ("card", "supported"),
    [
        ({}, True),
        ({"runtime_config": {"disaggregated_endpoint": None}}, True),
        ({"runtime_config": {"disaggregated_endpoint": {"bootstrap_host": None}}}, True),
        ({"runtime_config": {"disaggregated_endpoint": {"bootstrap_port": 8998}}}, False),
        ({"runtime_config": {"disaggregated_endpoint": {"bootstrap_host": "10.0.0.1"}}}, False),
    ],
)
def test_backends_that_dispatch_both_legs_together_are_refused(card, supported):
    why = unsupported_backend(card)
    assert (why is None) is supported
    assert supported or "SGLang" in why
