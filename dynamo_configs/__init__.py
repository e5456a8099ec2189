# SPDX-License-Identifier: Apache-2.0
"""Deployment files, cost profiles and the small trace that ship with the project (data only)."""
