"""A network between a client and a server that loses answers, and counts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.passing import Proxy


class Lossy(Proxy):
    """A proxy that gives up connections with answers in them.

    Attributes:
        lose: so many answers are lost, each with its connection, after the server has given them.
        lost: those that were.
    """

    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        self.lose = 0
        self.lost = 0

    async def back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """The answers that are not lost."""
        while data := await server.read(65_536):
            if self.lose:
                self.lose -= 1
                self.lost += 1
                return
            client.write(data)
            await client.drain()


@contextlib.asynccontextmanager
async def lossy(server_url: str) -> AsyncIterator[Lossy]:
    """A lossy network before a server."""
    async with Lossy(server_url).listening() as made:
        yield made
