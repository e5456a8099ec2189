# SPDX-License-Identifier: Apache-2.0
"""The generated model: one character a token, atomic, found by its name offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from controller.runtime.tiny_model import TINY_MODEL, ensure_tiny_model, visible_token_ids

REPOSITORY = Path(__file__).resolve().parents[2]


def snapshot_of(hf_home: Path) -> Path:
    entry = hf_home / "hub" / "models--equilibrium--tiny"
    return entry / "snapshots" / (entry / "refs" / "main").read_text()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    assert ensure_tiny_model(tmp_path) == TINY_MODEL == "equilibrium/tiny"
    return Tokenizer.from_file(str(snapshot_of(tmp_path) / "tokenizer.json"))


@pytest.mark.unit
def test_every_ascii_character_is_one_token_and_its_id_is_its_byte(tokenizer: Tokenizer) -> None:
    text = "".join(map(chr, range(32, 127)))
    assert tokenizer.encode(text).ids == list(text.encode("ascii"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.unit
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer) -> None:
    text = "line\n\ttab  spaces é 中 🙂"
    assert tokenizer.encode(text).ids == list(text.encode("utf-8"))
    assert tokenizer.decode(list(text.encode("utf-8"))) == text


@pytest.mark.unit
def test_visible_ids_decode_to_letters_and_space(tokenizer: Tokenizer) -> None:
    ids = visible_token_ids()
    assert [tokenizer.decode([token]) for token in ids] == list(" abcdefghijklmnopqrstuvwxyz")
    assert len(tokenizer.decode(list(ids))) == len(ids)


@pytest.mark.unit
def test_files_agree_on_the_special_tokens_and_the_context(tmp_path: Path) -> None:
    ensure_tiny_model(tmp_path)
    snapshot = snapshot_of(tmp_path)
    assert len(snapshot.name) == 40
    config = json.loads((snapshot / "config.json").read_text())
    generation = json.loads((snapshot / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(snapshot / "tokenizer.json"))
    names = json.loads((snapshot / "tokenizer_config.json").read_text())
    for kind in ("bos", "eos"):
        token_id = tokenizer.token_to_id(names[f"{kind}_token"])
        assert config[f"{kind}_token_id"] == generation[f"{kind}_token_id"] == token_id
        assert token_id not in visible_token_ids()
    assert config["max_position_embeddings"] == names["model_max_length"] == 131072
    assert tokenizer.get_vocab_size() <= config["vocab_size"]


@pytest.mark.unit
def test_second_call_writes_nothing(tmp_path: Path) -> None:
    ensure_tiny_model(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    ensure_tiny_model(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.unit
def test_damaged_reference_is_repaired(tmp_path: Path) -> None:
    ensure_tiny_model(tmp_path)
    reference = tmp_path / "hub" / "models--equilibrium--tiny" / "refs" / "main"
    good = reference.read_text()
    reference.write_text("")
    ensure_tiny_model(tmp_path)
    assert reference.read_text() == good


@pytest.mark.unit
def test_racing_writers_leave_one_whole_model_and_no_scratch(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ensure_tiny_model(tmp_path), range(32)))
    files = sorted(str(path.relative_to(tmp_path / "hub")) for path in tmp_path.rglob("*.json"))
    assert len(files) == 4
    assert not [path for path in tmp_path.rglob(".*")]


@pytest.mark.integration
def test_ids_need_no_tokenizer_library() -> None:
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from controller.runtime.tiny_model import visible_token_ids as ids; print(len(ids()))"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "27\n"


@pytest.mark.integration
def test_transformers_finds_it_by_name_offline(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ensure_tiny_model(tmp_path)
    code = (
        "from transformers import AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained('equilibrium/tiny')\n"
        "print(tokenizer('hi there')['input_ids'], tokenizer.decode([104, 105]))"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_HUB_CACHE", None)
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert out == f"{list(b'hi there')} hi\n"
