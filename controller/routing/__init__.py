# SPDX-License-Identifier: Apache-2.0
"""Where a prefill runs and in which order a queue is served. Pure.

A placement rule exists once: the live router and the simulator call the same object over the
same arrays (`controller.types.ClusterView`). Queues and sockets live elsewhere.
"""
