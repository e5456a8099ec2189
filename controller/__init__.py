# SPDX-License-Identifier: Apache-2.0
"""Equilibrium: a game-theoretic adaptive controller and drop-in router for NVIDIA Dynamo."""

__version__ = "0.1.0"
