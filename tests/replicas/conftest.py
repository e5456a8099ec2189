# SPDX-License-Identifier: Apache-2.0
"""A Redis server for a test."""

import pytest
from replicas_kit import RedisServer


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.kill()
