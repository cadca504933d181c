"""Events for the manager, kept until a stream has taken them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from parrot_proto.engine.v1 import engine_pb2

_ENDS = ("done", "failed", "cancelled")


class Outbox:
    """A queue that outlives streams: an event leaves it once a stream has accepted it.

    An event that a stream accepted and that its manager never saw is lost; the manager finds out
    by the finals on the bus, or by the attempts the next registration does not name.
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
        ends = []
        for event in self._events:
            kind = event.WhichOneof("event")
            if kind in _ENDS:
                ends.append(getattr(event, kind).ref)
        return ends

    async def send_all(self, write: Callable[[engine_pb2.AttachRequest], Awaitable[None]]) -> None:
        """Hands every event to `write`, in order; returns when the outbox is drained.

        Raises whatever `write` raises; the event it was given then stays.
        """
        while not self.drained:
            self._changed.clear()
            while self._events:
                await write(self._events[0])
                self._events.popleft()
            if not self._closed:
                await self._changed.wait()
