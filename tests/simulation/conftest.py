# SPDX-License-Identifier: Apache-2.0
"""These tests run the simulator."""

from compile_lock import simulator_is_compiled  # noqa: F401
