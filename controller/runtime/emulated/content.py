# SPDX-License-Identifier: Apache-2.0
"""What KV blocks hold, as chained hashes, and the tokens a model would make of it.

An emulated answer is a function of the tokens so far *and* of what the KV blocks really hold:
a hand-over that delivers another prompt's blocks yields other tokens, as real weights would,
and a stream that migrates to another worker continues with the same tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_MASK = (1 << 63) - 1


def _digest(chain: bytes, tokens: bytes) -> bytes:
    return hashlib.blake2b(tokens, digest_size=8, key=chain).digest()


def _content(digest: bytes) -> int:
    # 0 means "nothing" in the block pool; Dynamo's KV events take signed 64-bit hashes.
    return (int.from_bytes(digest, "little") & _MASK) or 1


def block_contents(token_ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Chained hash per block of a prompt, the last block possibly partial. Never 0."""
    raw = array("I", token_ids).tobytes()
    stride = block_size * 4
    chain = b""
    contents = []
    for start in range(0, len(raw), stride):
        chain = _digest(chain, raw[start : start + stride])
        contents.append(_content(chain))
    return tuple(contents)


def damage(expected: Sequence[int], held: Sequence[int]) -> int:
    """How wrong the KV is: 0 when every block holds what the prompt asks for."""
    wrong = [(i, a, b) for i, (a, b) in enumerate(zip(expected, held, strict=False)) if a != b]
    if not wrong and len(expected) == len(held):
        return 0
    raw = repr((wrong, len(held))).encode()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


class Answer:
    """The tokens that follow a prompt, one at a time."""

    def __init__(
        self,
        prompt: Sequence[int],
        block_size: int,
        vocabulary: Sequence[int],
        kv_damage: int = 0,
    ) -> None:
        raw = array("I", prompt).tobytes()
        self._stride = block_size * 4
        self._vocabulary = vocabulary
        self._damage = kv_damage
        full = (len(raw) - 1) // self._stride * self._stride if raw else 0
        self._chain = b""
        for start in range(0, full, self._stride):
            self._chain = _digest(self._chain, raw[start : start + self._stride])
        self._partial = bytearray(raw[full:])

    def next_token(self) -> int:
        """The next token; it becomes part of the context of the one after."""
        digest = _digest(self._chain, bytes(self._partial))
        mixed = int.from_bytes(digest, "little") ^ self._damage
        token = self._vocabulary[mixed % len(self._vocabulary)]
        if len(self._partial) >= self._stride:
            self._chain = digest
            self._partial.clear()
        self._partial += token.to_bytes(4, "little")
        return token
