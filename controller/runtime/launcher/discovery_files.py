# SPDX-License-Identifier: Apache-2.0
"""File discovery: forgetting what a killed process had registered.

A process that is killed stays listed until its lease ends, about 10 s (Dynamo 1.4.2), and the
frontend sends part of the requests to it meanwhile: they fail with 500. The launcher knows
better: it has seen the process end, so it takes the entry away at once.

Layout: `v1/instances/<namespace>%2F<component>%2F<endpoint>%2F<id>` (JSON, with the TCP address
under transport.tcp) and `v1/mdc/<same name>`, for a LoRA adapter with `%2F<adapter>` behind it;
punctuation is percent-encoded.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import socket
from pathlib import Path
from urllib.parse import unquote

_CONNECT_TIMEOUT_S = 0.5


def forget_dead(root: Path, endpoint: str) -> int:
    """Remove entries of `namespace.component.endpoint` whose address refuses; returns how many.

    Only a refused connection counts as dead: a busy process is slow, but it does not refuse.
    """
    forgotten = 0
    prefix = endpoint.replace(".", "/") + "/"
    with contextlib.suppress(OSError):
        for entry in list((root / "v1" / "instances").iterdir()):
            if unquote(entry.name).startswith(prefix) and _refuses(entry):
                _forget(root, entry.name)
                forgotten += 1
    return forgotten


def _forget(root: Path, name: str) -> None:
    for card in list((root / "v1" / "mdc").glob(f"{glob.escape(name)}*")):
        if card.name == name or card.name.startswith(f"{name}%2F"):
            card.unlink(missing_ok=True)
    (root / "v1" / "instances" / name).unlink(missing_ok=True)


def _refuses(entry: Path) -> bool:
    try:
        address = json.loads(entry.read_text())["transport"]["tcp"].split("/", 1)[0]
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
            return False
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # not what we know: leave it alone
