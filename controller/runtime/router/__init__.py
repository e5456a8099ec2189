# SPDX-License-Identifier: Apache-2.0
"""The live router: one core, and the ways to attach it to Dynamo.

`core` places and forwards prefills through a `PrefillPort`; it knows no Dynamo. `broker` makes
the core a Dynamo prefill component, `relay` and `streams` a front door that forwards whole
streams; `attachment` is what both share, `ports` and `decode_port` talk to the real workers.
"""
