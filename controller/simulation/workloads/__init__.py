# SPDX-License-Identifier: Apache-2.0
"""Workloads: what a simulated cluster is asked to serve, drawn before the run.

Owns: the value (workload), one pure seeded function a kind of load, changes and statistics.
Does not own: trace formats (../trace_formats), the cluster that serves it (../cluster).
"""
