"""A network between a client and a server that loses answers, and counts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Lossy:
    """Passes bytes on, both ways.

    Attributes:
        url: where it listens.
        lose: so many answers are lost, each with its connection, after the server has given them.
        lost: those that were.
        connections: how many clients have connected so far.
    """

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self.url = ""
        self.lose = 0
        self.lost = 0
        self.connections = 0
        self._passing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Lossy]:
        """Serves for the length of the `async with`."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        there, back = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._there(reader, back))
                group.create_task(self._back(there, writer))
        except* (ConnectionError, _LostError):
            pass
        finally:
            for end in (writer, back):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        raise _LostError

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.lose:
                self.lose -= 1
                self.lost += 1
                raise _LostError
            writer.write(data)
            await writer.drain()
        raise _LostError


class _LostError(Exception):
    """The connection is to end."""


@contextlib.asynccontextmanager
async def lossy(server_url: str) -> AsyncIterator[Lossy]:
    """A lossy network before a server."""
    async with Lossy(server_url).listening() as made:
        yield made
