# SPDX-License-Identifier: Apache-2.0
"""Workloads and, later, virtual time. A pure room: no I/O, no clock, no environment.

Owns: traces as values, their file formats as text, their scaling, the synthetic generator.
Does not own: reading files, sending requests (controller/runtime/load).
"""
