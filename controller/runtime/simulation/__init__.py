# SPDX-License-Identifier: Apache-2.0
"""Files of `equilibrium simulate`: what goes in and what comes out. The run is pure."""
