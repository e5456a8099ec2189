# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of continuing an answer on another worker."""

import pytest

from controller.runtime.router.migration import Continuation

pytestmark = pytest.mark.unit


def request(**changes):
    return {
        "token_ids": [1, 2, 3],
        "stop_conditions": {"max_tokens": 10, "min_tokens": 3, "stop": ["x"]},
        "sampling_options": {"n": None, "guided_decoding": None, "temperature": 0.0},
        "unknown": {"keep": "me"},
    } | changes


def after(tokens, **changes):
    answer = Continuation(request(**changes), 3)
    for token in tokens:
        answer.forward({"token_ids": [token], "index": 0})
    answer.migrate()
    return answer


def test_the_first_leg_is_the_request_itself():
    body = request()
    assert Continuation(body, 3).request() is body


def test_generated_tokens_join_the_prompt_and_shrink_the_budgets():
    continued = after([11, 12]).request()
    assert continued["token_ids"] == [1, 2, 3, 11, 12]
    assert continued["stop_conditions"] == {"max_tokens": 8, "min_tokens": 1, "stop": ["x"]}
    assert continued["unknown"] == {"keep": "me"}


def test_budgets_that_are_not_given_stay_so_and_min_tokens_ends_at_zero():
    stop = {"max_tokens": None, "min_tokens": 1}
    continued = after([11, 12], stop_conditions=stop).request()
    assert continued["stop_conditions"] == {"max_tokens": None, "min_tokens": 0}


def test_a_second_migration_counts_from_the_start():
    answer = after([11, 12])
    answer.forward({"token_ids": [13], "index": 0})
    answer.migrate()
    assert answer.request()["token_ids"] == [1, 2, 3, 11, 12, 13]
    assert answer.request()["stop_conditions"]["max_tokens"] == 7
    assert answer.migrations == 2


def test_the_last_chunks_usage_counts_the_clients_prompt_and_the_whole_answer():
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None},
        "other": 1,
    }
    chunk = {"token_ids": [20], "index": 0, "finish_reason": "length", "completion_usage": usage}
    assert after([11, 12]).forward(chunk)["completion_usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 10,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": None},
        "other": 1,
    }


def test_without_a_migration_chunks_pass_untouched():
    answer = Continuation(request(), 3)
    chunk = {"token_ids": [1], "finish_reason": "stop", "completion_usage": {}, "odd": object()}
    assert answer.forward(chunk) is chunk
    assert answer.finished


def test_an_answer_that_lost_only_its_last_chunk_is_closed():
    answer = after(range(10))
    assert answer.complete and not answer.finished
    assert answer.closing_chunk() == {
        "token_ids": [],
        "index": 0,
        "finish_reason": "length",
        "completion_usage": {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13},
    }
    assert answer.finished


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_options": {"n": 2}},
        {"sampling_options": {"guided_decoding": {"json": {}}}},
        {"prompt_embeds": "abc"},
    ],
)
def test_what_cannot_be_continued_from_its_tokens_does_not_migrate(changes):
    assert not Continuation(request(**changes), 3).may_migrate


def test_the_limit_ends_it():
    answer = Continuation(request(), 1)
    assert answer.may_migrate
    answer.migrate()
    assert not answer.may_migrate
    assert not Continuation(request(), 0).may_migrate


def test_several_choices_finish_when_all_have():
    answer = Continuation(request(sampling_options={"n": 2}), 3)
    answer.forward({"token_ids": [1], "index": 1, "finish_reason": "stop"})
    assert not answer.finished
    answer.forward({"token_ids": [1], "index": 0, "finish_reason": "stop"})
    assert answer.finished
