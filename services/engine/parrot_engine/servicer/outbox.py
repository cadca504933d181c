"""Events for one manager, kept until a stream has taken them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from parrot_engine.servicer.attempts import end_of, shard_of_event
from parrot_proto.engine.v1 import engine_pb2


class Outbox:
    """A queue that outlives streams: an event leaves it once a stream has accepted it.

    An event that a stream accepted and that its manager never saw is said again to the manager that
    adopts the attempt; or the manager finds out by the finals on the bus, or by the attempts the next
    registration does not name.
    """

    def __init__(self) -> None:
        self._events: deque[engine_pb2.AttachRequest] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, event: engine_pb2.AttachRequest) -> None:
        """Adds an event; never waits."""
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """No event follows: `send_all` returns once it has sent what is left."""
        self._closed = True
        self._changed.set()

    @property
    def drained(self) -> bool:
        """Closed, and every event was taken."""
        return self._closed and not self._events

    def unsent_ends(self) -> list[engine_pb2.AttemptRef]:
        """The attempts that have ended and whose end no stream has taken yet."""
        return [ref for event in self._events if (ref := end_of(event)) is not None]

    def take(self, shard: int) -> list[engine_pb2.AttachRequest]:
        """Removes the events about attempts of a shard, in order."""
        return self._remove(lambda event: shard_of_event(event) == shard)

    def take_all(self) -> list[engine_pb2.AttachRequest]:
        """Removes the events about attempts of any shard, in order."""
        return self._remove(lambda event: shard_of_event(event) is not None)

    async def send_all(self, write: Callable[[engine_pb2.AttachRequest], Awaitable[None]]) -> None:
        """Hands every event to `write`, in order; returns when the outbox is drained.

        Raises whatever `write` raises; the event it was given then stays.
        """
        while not self.drained:
            self._changed.clear()
            while self._events:
                event = self._events[0]
                await write(event)
                # Meanwhile it may have gone to another manager.
                if self._events and self._events[0] is event:
                    self._events.popleft()
            if not self._closed:
                await self._changed.wait()

    def _remove(self, wanted: Callable[[engine_pb2.AttachRequest], bool]) -> list[engine_pb2.AttachRequest]:
        removed = [event for event in self._events if wanted(event)]
        self._events = deque(event for event in self._events if not wanted(event))
        self._changed.set()
        return removed
