"""The process's connections: one pool, whatever the number of sessions.

A pool belongs to an event loop, and the SDK has one loop a process; it is closed when that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from parrot.background import background
from parrot.errors import SessionError

if TYPE_CHECKING:
    import httpx

WAITS_AT_ONCE: Final = 256
"""Waits that hold a connection at once; others queue, for a wait gives its place up before long."""
STREAMS_AT_ONCE: Final = 512
"""Streams that are open at once. They have no end that can be counted on: one more is an error, no queue.
With the waits, they leave room in the 1,024 files that a process may open."""
KEPT: Final = 64
"""Idle connections that are kept."""


class Pool:
    """Connections to any number of servers.

    Attributes:
        waits: taken by whatever waits for a value.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[bool, bool], httpx.AsyncClient] = {}
        self.waits = asyncio.Semaphore(WAITS_AT_ONCE)
        self._streams = 0

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Counts a stream for as long as it is followed.

        Raises:
            SessionError: there are as many as there may be.
        """
        if self._streams == STREAMS_AT_ONCE:
            raise SessionError(
                f"this process has {STREAMS_AT_ONCE} streams of texts and events open, as many as it may; "
                "close some, or wait for texts with get()"
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def client(self, *, https: bool, loopback: bool) -> httpx.AsyncClient:
        """The client for servers of this kind."""
        found = self._clients.get((https, loopback))
        if found is None:
            import httpx

            found = self._clients[https, loopback] = httpx.AsyncClient(
                # Plain HTTP needs no certificates, which take 20 ms to load.
                verify=https,
                # A proxy of the environment can't reach this machine's own loopback.
                trust_env=not loopback,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=KEPT),
            )
        return found

    async def use(self, client: httpx.AsyncClient) -> None:
        """Asks servers of every kind by a client of the caller's own from now on; the pool closes it."""
        await self.aclose()
        for kind in ((True, True), (True, False), (False, True), (False, False)):
            self._clients[kind] = client

    async def aclose(self) -> None:
        """Closes every connection."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()


def pool() -> Pool:
    """The running loop's pool. To be asked on the background loop."""
    loop = asyncio.get_running_loop()
    found = _pools.get(loop)
    if found is None:
        found = _pools[loop] = Pool()
        background().at_stop(found.aclose)
    return found
