# SPDX-License-Identifier: Apache-2.0
"""Measuring a deployment: passes of live workers, KV transfers between processes.

Owns: subscriptions, processes, clocks. Does not own: fitting (controller.costs), tables and
arguments (controller.cli.profile).
"""
