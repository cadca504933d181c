"""How a stream of events is followed to its end, over as many connections as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, Protocol, TypeVar

from parrot.client import PASSING, Backoff, Client
from parrot.connections import pool
from parrot.errors import ParrotError, RequestRefused, ServerUnavailable, WaitTimeout
from parrot.sse import Event, Parser

SILENCE_S: Final = 45.0
"""After so long without a byte, three heartbeats, a stream is dead."""

T = TypeVar("T")
Item_co = TypeVar("Item_co", covariant=True)


class Follower(Protocol[Item_co]):
    """What is made of events, and how far they came.

    Attributes:
        last_event_id: where to go on from; empty: from the start.
        is_over: the event that was taken last is the end.
    """

    last_event_id: str
    is_over: bool

    def begin(self) -> None:
        """A connection begins, perhaps after another that broke."""

    def take(self, event: Event) -> Item_co | None:
        """What an event brings; None: nothing.

        Raises:
            ServerUnavailable: the stream is broken; it is followed on another connection.
            RequestRefused: the same, when that may pass; else it is at its end.
            ParrotError: it is at its end.
        """

    def late(self) -> WaitTimeout:
        """That the end did not come in time."""


async def follow(
    client: Client,
    path: str,
    follower: Follower[T],
    timeout_s: float | None,
    wanted: dict[str, Any] | None = None,
) -> AsyncGenerator[T, None]:
    """What the follower makes of the events at `path`.

    Args:
        timeout_s: for the whole of it; None: as long as it takes.
        wanted: what the reader wants, as the query says it.

    Raises:
        WaitTimeout: the end did not come in time.
        RequestRefused: the server refused.
        ServerUnavailable: it can't be reached.
        SessionError: this process follows as many streams as it may.
        ParrotError: what the follower raises.
    """
    deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    with pool().stream():
        async with aclosing(_over_connections(client, path, follower, deadline, wanted)) as items:
            async for item in items:
                yield item


async def _over_connections(
    client: Client, path: str, follower: Follower[T], deadline: float | None, wanted: dict[str, Any] | None
) -> AsyncGenerator[T, None]:
    backoff = Backoff(client.retry_s, held=True)
    while True:
        try:
            async with AsyncExitStack() as stack:
                opening = client.events(path, follower.last_event_id, SILENCE_S, wanted)
                blocks = await _within(deadline, follower, stack.enter_async_context(opening))
                parser = Parser()
                follower.begin()
                while (block := await _within(deadline, follower, anext(blocks, None))) is not None:
                    for event in parser.feed(block):
                        if (item := follower.take(event)) is not None:
                            backoff.progress()
                            yield item
                        if follower.is_over:
                            return
            broken: ParrotError = ServerUnavailable("the stream ended before its end")
        except ServerUnavailable as error:
            broken = error
        except RequestRefused as error:
            if error.status not in PASSING:
                raise
            broken = error
        await _within(
            deadline, follower, backoff.pause(broken, getattr(broken, "retry_after_s", None) or 0.0)
        )


async def _within(deadline: float | None, follower: Follower[Any], work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise follower.late() from None
