# SPDX-License-Identifier: Apache-2.0
"""What the measurements say: readings, windows, regimes, the price of anarchy. Pure."""
