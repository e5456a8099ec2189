# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a deployment that was configured well (exit code 1, not 2)."""

from __future__ import annotations


class LaunchError(Exception):
    """The deployment did not come up or fell over; str() says what, and which log to read."""
