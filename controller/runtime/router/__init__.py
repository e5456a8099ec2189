# SPDX-License-Identifier: Apache-2.0
"""The live router: one core, and the ways to attach it to Dynamo.

`core` places and forwards prefills through a `PrefillPort`; it knows no Dynamo. `broker` makes
the core a Dynamo prefill component; `ports` talks to the real workers.
"""
