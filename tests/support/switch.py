"""One address before several servers, as a Service of Kubernetes: new connections go to whom it points at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Switch:
    """Passes bytes on to `target`; connections that are there stay where they are.

    Attributes:
        url: where it listens.
        target: the URL of the server that new connections go to.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._closed = False

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Switch]:
        """Serves for the length of the `async with`."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # It was accepted before the server was closed, and comes after.
            writer.close()
            return
        self._writers.append(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        ends, ways = [writer], list[asyncio.Task[None]]()
        try:
            there, back = await asyncio.open_connection(parts.hostname, parts.port)
            ends.append(back)
            ways += [
                asyncio.create_task(_pass_on(reader, back)),
                asyncio.create_task(_pass_on(there, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # All of it before the first wait: that may be cancelled.
            for way in ways:
                way.cancel()
            for end in ends:
                end.close()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        sink.write(data)
        await sink.drain()
