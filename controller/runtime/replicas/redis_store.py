# SPDX-License-Identifier: Apache-2.0
"""Redis between router replicas: who is there, and each one's books, in the background.

Owns: the connection and its failures, the keys, what must be atomic. Does not own: what is told
(controller.routing.replica_state), what is made of it (group.py). No request ever waits for Redis:
`beat` and `listen` are the only ones that do, each in a task of its own.

Keys, all below the prefix: `members`, a sorted set of replica names by the time of their last sign
of life (Redis's own clock), `addresses`, a hash of where they listen, and the channel `states`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

# The client's own, on every read: wait_for around it may swallow a cancellation before Python 3.12.
_TIMEOUT_S = 1.0
# A sign of life and the answer who else has given one are one step, or two that start at the same
# time might each not see the other; the dead are taken out by whoever comes next.
_BEAT = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[1], ms, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[3])) do
  redis.call('ZREM', KEYS[1], name)
  redis.call('HDEL', KEYS[2], name)
end
return redis.call('HGETALL', KEYS[2])
"""
_LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
"""
Addresses = dict[str, tuple[str, int]]


class RedisStore:
    """One replica's way to the others. `RedisError` and `OSError`: Redis is away, try again."""

    def __init__(self, url: str, prefix: str, member_ttl_s: float) -> None:
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the next period is the next try
        )
        self._keys = [f"{prefix}:members", f"{prefix}:addresses"]
        self._channel = f"{prefix}:states"
        self._closed = False
        self._ttl_ms = int(member_ttl_s * 1000)

    async def beat(self, replica: str, address: str, state: bytes) -> Addresses:
        """A sign of life and our books, in one round trip; returns who is there."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.eval(_BEAT, 2, *self._keys, replica, address, self._ttl_ms)
        pipe.publish(self._channel, state)
        members, _ = await pipe.execute()
        return _addresses(members)

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """The others' books as they come (and our own); ends with an error when Redis goes."""
        pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            await pubsub.subscribe(self._channel)
            while not self._closed:  # its client may swallow a cancellation
                message = await pubsub.get_message(timeout=_TIMEOUT_S)
                if message is not None:
                    yield message["data"]
        finally:
            with contextlib.suppress(RedisError, OSError):
                await pubsub.aclose()

    async def leave(self, replica: str) -> None:
        """Say goodbye; without it the others notice after a while."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.eval(_LEAVE, 2, *self._keys, replica)

    async def close(self) -> None:
        """Give the connections back."""
        self._closed = True
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()


def _addresses(flat: Any) -> Addresses:
    """A hash as Redis gives it: names and `host:port` in turn."""
    words = [word.decode() for word in flat]
    found: Addresses = {}
    for name, address in zip(words[::2], words[1::2], strict=False):
        host, _, port = address.rpartition(":")
        if host and port.isdigit():
            found[name] = (host, int(port))
    return found
