# SPDX-License-Identifier: Apache-2.0
"""The text of a trace file, plain or gzip, with one clear line when it cannot be had."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from controller.errors import UserError

_GZIP = b"\x1f\x8b"


def read_trace_text(path: str | Path) -> str:
    """The text of a trace. Raises UserError."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the trace ({error.strerror or error})") from None
    if data.startswith(_GZIP):
        data = _unpacked(data, path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start}); give a Mooncake JSONL, Azure CSV or "
            "Frontier CSV file, plain or gzip"
        ) from None


def _unpacked(data: bytes, path: str | Path) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise UserError(f"{path}: the gzip file is cut off; copy it again") from None
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: the gzip file is damaged ({error}); copy it again") from None
