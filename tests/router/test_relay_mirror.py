# SPDX-License-Identifier: Apache-2.0
"""The decode workers' model card, passed on (a card as Dynamo 1.4.2 publishes it)."""

import copy

import pytest
from dynamo import llm

from controller.errors import UserError
from controller.runtime.router.mirror import register_front_door, runtime_config, surfaces

pytestmark = pytest.mark.unit

CARD = {
    "display_name": "org/shown",
    "source_path": "org/model",
    "context_length": 777,
    "kv_cache_block_size": 16,
    "model_type": "Chat | Completions",
    "model_input": "Tokens",
    "worker_type": "decode",
    "needs": [["prefill"]],
    "aliases": ["alias-a"],
    "user_data": {"k": {"a": 1}},
    "runtime_config": {
        "context_length": 777,
        "total_kv_blocks": 5,
        "max_num_seqs": None,
        "tool_call_parser": "hermes",
        "reasoning_parser": "qwen3",
        "structural_tag_mode": "on",
        "structural_tag_scope": "always",
        "exclude_tools_when_tool_choice_none": False,
        "data_parallel_size": 2,
        "enable_local_indexer": True,
        "runtime_data": {"default_thinking_mode": "on", "stream_interval": 4},
        "taints": ["a"],
        "topology_domains": {"zone": "z"},
        "max_gpu_lora_count": 3,
        "of_a_later_version": 1,
    },
    "media_decoder": {"image": {"limits": {"max_image_width": None, "max_alloc": 1000}}},
    "media_fetcher": {
        "user_agent": "dynamo-ai/dynamo",
        "allow_direct_ip": True,
        "allow_direct_port": False,
        "allowed_media_domains": None,
        "timeout": {"secs": 4, "nanos": 500_000_000},
    },
}


@pytest.fixture
def registered(monkeypatch):
    calls = []

    async def register_model(*args, **kwargs):
        calls.append((args, kwargs))

    monkeypatch.setattr(llm, "register_model", register_model)
    return calls


def test_parsers_context_and_engine_data_are_mirrored_and_one_workers_own_are_not():
    mirrored = runtime_config(CARD)
    assert mirrored.context_length == 777
    assert (mirrored.tool_call_parser, mirrored.reasoning_parser) == ("hermes", "qwen3")
    assert mirrored.exclude_tools_when_tool_choice_none is False
    assert mirrored.get_engine_specific("default_thinking_mode") == "on"
    assert mirrored.runtime_data["stream_interval"] == "4"
    assert not mirrored.taints and not mirrored.topology_domains


async def test_the_relay_registers_as_an_aggregated_worker_with_all_that_can_be_passed(registered):
    await register_front_door("endpoint", "configured", CARD)
    ((args, kwargs),) = registered
    assert args[2:] == ("endpoint", "org/model", "org/shown")
    assert kwargs["kv_cache_block_size"] == 16
    assert kwargs["user_data"] == {"k": {"a": 1}}
    assert kwargs["model_aliases"] == ["alias-a"]
    assert kwargs["max_gpu_lora_count"] == 3
    assert str(kwargs["worker_type"]).lower().endswith("aggregated")
    assert isinstance(kwargs["media_decoder"], llm.MediaDecoder)
    assert isinstance(kwargs["media_fetcher"], llm.MediaFetcher)
    assert "needs" not in kwargs and "custom_template_path" not in kwargs


def test_the_surfaces_are_the_cards():
    assert surfaces({"model_type": "Chat"}).supports_chat()
    assert not surfaces({"model_type": "Completions"}).supports_chat()
    assert surfaces({}).supports_chat()


async def test_a_custom_template_must_be_readable_here(registered, tmp_path):
    path = tmp_path / "chat.jinja"
    card = copy.deepcopy(CARD)
    card["chat_template_file"] = {
        "hf_chat_template": {"is_custom": True, "file": {"path": str(path)}}
    }
    with pytest.raises(UserError, match=r"chat\.jinja"):
        await register_front_door("endpoint", "configured", card)
    path.write_text("{{ messages }}")
    await register_front_door("endpoint", "configured", card)
    assert registered[0][1]["custom_template_path"] == str(path)


async def test_workers_that_take_text_are_refused(registered):
    with pytest.raises(UserError, match="tokens"):
        await register_front_door("endpoint", "configured", CARD | {"model_input": "Text"})
    assert registered == []
