"""A distance between client and server, the same for every system: requests and answers take time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import httpx

from parrot_bench.pools import Pools

_END: Final = None
Chunk = tuple[float, bytes] | tuple[float, BaseException] | tuple[float, None]
"""When it may be read, in the loop's time, and what it is: bytes, a failure, or the end."""


def client(rtt_ms: float, timeout: httpx.Timeout | float | None = None) -> httpx.AsyncClient:
    """A client at a distance from all servers it asks; without any limit on its connections.

    Args:
        rtt_ms: 0: nothing stands between, and nothing is spent on it.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # Plain HTTP to this machine: no certificates, and no proxy of the environment.
    near = Pools(lambda: httpx.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits))
    transport = Distant(near, rtt_ms) if rtt_ms > 0 else near
    return httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


class Distant(httpx.AsyncBaseTransport):
    """Delays each request by half of the round trip, and every byte of its answer by the other half.

    An answer that is written for a long time is not slowed down but shifted: each chunk is read as long
    after it arrived here as the way takes. A new connection costs no round trip more: clients keep theirs.
    """

    def __init__(self, near: httpx.AsyncBaseTransport, rtt_ms: float) -> None:
        self._near = near
        self._way_s = rtt_ms / 2000

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, after the way there and back."""
        await asyncio.sleep(self._way_s)
        response = await self._near.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - as httpx promises
        body = _Shifted(response.stream, self._way_s)
        # What is written while the headers travel is on its way as well.
        body.begin()
        try:
            await asyncio.sleep(self._way_s)
        except BaseException:
            await body.aclose()
            raise
        return httpx.Response(
            response.status_code, headers=response.headers, stream=body, extensions=response.extensions
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._near.aclose()


class _Shifted(httpx.AsyncByteStream):
    """A stream whose chunks are read `way_s` after they came. Its pump lives until it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, way_s: float) -> None:
        self._stream = stream
        self._way_s = way_s
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Takes chunks in from now on."""
        self._pump = asyncio.create_task(self._fill())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            due, what = await self._chunks.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if what is _END:
                return
            if isinstance(what, BaseException):
                raise what
            yield what

    async def aclose(self) -> None:
        """Ends the pump, and the stream under it."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump
        await self._stream.aclose()

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for chunk in self._stream:
                self._chunks.put_nowait((loop.time() + self._way_s, chunk))
        except Exception as error:  # noqa: BLE001 - it is the reader's to handle, and is raised there
            self._chunks.put_nowait((loop.time() + self._way_s, error))
        else:
            self._chunks.put_nowait((loop.time() + self._way_s, _END))
