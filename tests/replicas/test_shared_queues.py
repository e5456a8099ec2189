# SPDX-License-Identifier: Apache-2.0
"""The books of a queue that changes hands."""

import pytest

from controller.routing.inflight import InFlightBound
from controller.routing.replica_state import TaskState
from controller.runtime.router.shared_queues import SharedQueues
from controller.runtime.router.tickets import Alone

pytestmark = pytest.mark.unit


class Elsewhere(Alone):
    """Every queue is another replica's until `gone`."""

    gone = False

    def owner_of(self, unit_id):
        return None if self.gone else "other"


async def test_what_we_have_sent_counts_when_what_others_had_is_no_longer_shown():
    queues, owners = SharedQueues(InFlightBound(1000, 1), 10), Elsewhere()
    queues.share(owners)
    queues.sync([1], 100.0)
    ours = queues.enqueue(1, 2000, 2.0, 100.0)
    queues.granted_elsewhere(ours, 1, 2000, 2.0, 100.0)
    queues.mirror(1, [TaskState("other", 500, 0.5, 9.0, 0.0, 0, True)], 100.0)
    assert queues.predicted_s(1, 100.0) == pytest.approx(2.5)
    owners.gone = True
    queues.reown(100.0)
    assert queues.predicted_s(1, 100.0) == pytest.approx(2.0)
