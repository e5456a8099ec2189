# SPDX-License-Identifier: Apache-2.0
"""What a simulation amounts to, as values: summary, rows, time series, spans of a Chrome trace.

Pure: files are written by controller.runtime.simulation. Does not own: what happened (../cluster).
"""
