# SPDX-License-Identifier: Apache-2.0
"""In which regime a deployment is, and what has happened to it. Pure: samples in, verdicts out."""
