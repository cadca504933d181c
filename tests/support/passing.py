"""What stands between a client and a server in tests: it passes bytes on, each kind in its own way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on to `target`, both ways; an end of either ends the connection.

    Attributes:
        url: where it listens.
        target: the URL of the server that new connections go to.
        connections: how many clients have connected so far.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.connections = 0
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._closed = False

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Self]:
        """Serves for the length of the `async with`."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{urlsplit(self.target).scheme}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()
            self._closed = True
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)
            # A task that was cancelled before it began has closed nothing.
            for writer in self._writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def there(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """What a client says, on its way to the server; returns at its end."""
        await passed_on(client, server)

    async def back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """What the server says, on its way to a client; returns at its end."""
        await passed_on(server, client)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # It was accepted before the server was closed, and comes after.
            writer.close()
            return
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        ends, ways = [writer], list[asyncio.Task[None]]()
        try:
            server_reader, server_writer = await asyncio.open_connection(parts.hostname, parts.port)
            ends.append(server_writer)
            ways += [
                asyncio.create_task(self.there(reader, server_writer)),
                asyncio.create_task(self.back(server_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # All of it before the first wait: that may be cancelled.
            for way in ways:
                way.cancel()
            for end in ends:
                end.close()
            await asyncio.gather(*ways, return_exceptions=True)


async def passed_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Passes bytes on until there are no more."""
    while data := await source.read(65_536):
        sink.write(data)
        await sink.drain()
