# SPDX-License-Identifier: Apache-2.0
"""The demo: one trace, calm then burst, through three deployments on the same workers.

Owns: which deployments are compared and that nothing else differs between them. Does not own:
tables and pictures (analysis.demo_report).
"""
