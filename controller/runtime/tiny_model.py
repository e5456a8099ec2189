# SPDX-License-Identifier: Apache-2.0
"""The generated model `equilibrium/tiny`: tokenizer, config, on request weights; no download.

Owns: the files of the model and their layout as an entry of a Hugging Face hub cache, so that
with `HF_HOME=<that folder> HF_HUB_OFFLINE=1` the name resolves in the Dynamo frontend, in
`register_model`, in `transformers.AutoTokenizer` and in aiperf.
Does not own: who reads it, nor the environment of the processes (see launcher/environment.py).

The tokenizer is byte level and a token's id is its byte: one visible ASCII character is one
token, so the length of a text in tokens can be read off it, and every id an emulated worker
emits decodes to text (aiperf counts answers without visible text as failed).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import string
import tempfile
from pathlib import Path

from controller.runtime.tiny_weights import tiny_weights

TINY_MODEL = "equilibrium/tiny"
MAX_CONTEXT_TOKENS = 131072
BYTES = 256
BOS_ID = BYTES
EOS_ID = BYTES + 1
VOCAB_SIZE = 512

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def is_tiny(name: str) -> bool:
    """Whether a model is generated: `equilibrium/tiny` or `equilibrium/tiny-SOMETHING`."""
    return name == TINY_MODEL or name.startswith(f"{TINY_MODEL}-")


def visible_token_ids() -> tuple[int, ...]:
    """Ids of the space and the lower-case letters: what an emulated worker may emit."""
    return tuple((" " + string.ascii_lowercase).encode("ascii"))


def ensure_tiny_model(hf_home: Path, *, weights: bool = False, name: str = TINY_MODEL) -> str:
    """Make `equilibrium/tiny`, or `name`, resolvable below `hf_home`; returns the model's name.

    `weights` adds seeded random ones (tiny_weights.py), which only a real engine needs.

    Idempotent, and atomic against other processes that do the same: the snapshot appears whole
    (one rename) before the reference that points at it.
    """
    entry = hf_home / "hub" / f"models--{name.replace('/', '--')}"
    files = _files()
    revision = _revision(files | {"weights": str(weights)})
    snapshot = entry / "snapshots" / revision
    if not snapshot.is_dir():
        _publish_snapshot(entry, snapshot, files, weights)
    reference = entry / "refs" / "main"
    if not (reference.is_file() and reference.read_text(encoding="ascii") == revision):
        _replace_text(reference, revision)
    return name


def _publish_snapshot(entry: Path, snapshot: Path, files: dict[str, str], weights: bool) -> None:
    snapshot.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".writing-", dir=entry))
    try:
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8")
        if weights:
            from safetensors.numpy import save_file

            save_file(tiny_weights(_ARCHITECTURE), scratch / "model.safetensors")
        scratch.chmod(0o755)  # mkdtemp makes it private; other users may share the cache
        scratch.rename(snapshot)
    except OSError:
        # Another process may have published the same content first; that is as good.
        if not snapshot.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=".writing-", dir=path.parent.parent)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(text)
    Path(scratch).chmod(0o644)
    Path(scratch).replace(path)


def _revision(files: dict[str, str]) -> str:
    """Forty hex digits, as a git revision; other content is another snapshot."""
    whole = "\0".join(f"{name}\0{text}" for name, text in sorted(files.items()))
    return hashlib.sha256(whole.encode("utf-8")).hexdigest()[:40]


def _files() -> dict[str, str]:
    special = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    return {
        "config.json": _json({**_ARCHITECTURE, **special}),
        "generation_config.json": _json(special),
        "tokenizer.json": _tokenizer_json(),
        "tokenizer_config.json": _json(_TOKENIZER_CONFIG),
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2's table), by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(BYTES, 2 * BYTES))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(BYTES)]


def _tokenizer_json() -> str:
    # Imported here: the ids above are needed by processes that never tokenize.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {char: byte for byte, char in enumerate(_byte_alphabet())}
    vocab |= {"<s>": BOS_ID, "</s>": EOS_ID}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return str(tokenizer.to_str(pretty=True))


# Of a size that a real engine accepts too (vLLM with --load-format dummy, also on a CPU).
_ARCHITECTURE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "model_max_length": MAX_CONTEXT_TOKENS,
    "clean_up_tokenization_spaces": False,
    "chat_template": _CHAT_TEMPLATE,
}
