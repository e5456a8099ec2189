# SPDX-License-Identifier: Apache-2.0
"""Bringing names of the same thing together: instance ids, models, namespaces. Pure.

Owns: the canonical form of each. Does not own: who is alive (roster.py).

Dynamo writes one instance id in decimal on a frontend and in hexadecimal, without leading zeros, on
a worker; a text of ten digits could be either, so the family decides and the live set settles what
is left. It lower-cases model names in labels, turns the dashes of namespaces into underscores, and
the operator appends a generation suffix to worker namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from controller.estimation.signals import IdBase

_MOST = (1 << 64) - 1
_HEX = re.compile(r"[0-9a-f]{1,16}\Z")
_DECIMAL = re.compile(r"[0-9]{1,20}\Z")
_SUFFIX = re.compile(r"_[0-9a-z]+\Z")


def worker_id(text: str, base: IdBase, live: Collection[int] = ()) -> int | None:
    """The instance id that a label means; None for what is none.

    `live` settles it when the family's base gives nobody that is registered and the other does.
    """
    written = text.strip().lower()
    first = _as(written, base)
    other = _as(written, IdBase.HEX if base is IdBase.DECIMAL else IdBase.DECIMAL)
    if first is None or (first not in live and other in live):
        return other if other in live or first is None else first
    return first


def _as(text: str, base: IdBase) -> int | None:
    pattern, radix = (_DECIMAL, 10) if base is IdBase.DECIMAL else (_HEX, 16)
    if pattern.match(text) is None:
        return None
    number = int(text, radix)
    return number if number <= _MOST else None


def model_name(text: str) -> str:
    """Dynamo's label of a model is lower-cased; so is what it is compared with."""
    return text.strip().casefold()


def same_model(one: str, other: str) -> bool:
    """Whether two spellings name one model."""
    return model_name(one) == model_name(other)


def namespace(text: str) -> str:
    """As in metric labels: dashes are underscores there."""
    return text.strip().replace("-", "_")


def in_namespace(found: str, asked: str) -> bool:
    """Whether a worker's namespace is `asked`, or that with the operator's generation suffix."""
    mine, theirs = namespace(asked), namespace(found)
    if theirs == mine:
        return True
    return theirs.startswith(mine) and _SUFFIX.match(theirs[len(mine) :]) is not None
