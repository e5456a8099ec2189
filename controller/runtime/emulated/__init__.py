# SPDX-License-Identifier: Apache-2.0
"""The emulated Dynamo worker: everything of a real one but the GPU.

Owns: running the engine law (controller.engine) against the wall clock, Dynamo's wire
formats, the KV side channel between workers. Does not own: how long anything takes.
"""
