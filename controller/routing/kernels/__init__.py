# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the routing rules, compiled: numbers and arrays in, an index and a reason out.

Owns: what a rule decides once its inputs are known. Does not own: how the inputs are measured or
predicted, worker ids, logs. The live router (controller.routing) and the simulator call the same
functions; a figure from the simulator is therefore a figure of the code that ships.

A choice is the index of a prefill worker, or `LOCAL`. A rule that needs chance gets 63 random
bits a decision and makes from them whatever it needs (draws.py), so both callers can repeat it.
"""
