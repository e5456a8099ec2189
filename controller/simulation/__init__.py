# SPDX-License-Identifier: Apache-2.0
"""Workloads and virtual time. A pure room: no I/O, no clock, no environment.

Owns: traces as values and as text (traces, trace_formats, trace_shaping), what a simulated cluster
serves (workloads), the cluster (cluster) and attention-FFN disaggregation (afd).
Does not own: reading files, sending requests (controller/runtime/load).
"""
