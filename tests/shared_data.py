# SPDX-License-Identifier: Apache-2.0
"""Where the validation data and traces lie that are not part of the repository.

Tests that want them skip when they are absent: beside the repository, or EQUILIBRIUM_SHARED.
"""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("EQUILIBRIUM_SHARED") or Path(__file__).parents[2] / "shared")


def shared_path(relative: str) -> Path:
    """A file or folder of the shared data; skips the running test when it is not here."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"{path} is not here (set EQUILIBRIUM_SHARED to the shared folder)")
    return path
