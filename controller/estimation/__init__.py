# SPDX-License-Identifier: Apache-2.0
"""What the measurements say: windows now, regimes and the price of anarchy later. Pure."""
