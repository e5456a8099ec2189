# SPDX-License-Identifier: Apache-2.0
"""Whole deployments on loopback, as a fixture."""

from __future__ import annotations

from pathlib import Path

import pytest
from up_kit import up


@pytest.fixture
def launch(tmp_path: Path):
    """`async with launch(router__policy=...) as deployment`."""
    return lambda **changes: up(tmp_path, **changes)
