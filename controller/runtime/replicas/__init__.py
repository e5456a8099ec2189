# SPDX-License-Identifier: Apache-2.0
"""Several routers behind one frontend: who is there, who owns which queue, what the others do.

Membership and states go through Redis in the background, never on the way of a request: a
replica decides by what it has heard. `links` carry the requests for a place in a queue from replica
to replica; `group` puts it together. docs/replicas.md says what happens when a part is gone.
"""
