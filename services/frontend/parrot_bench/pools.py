"""Any number of requests at once, each as cheap as the first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import httpx

POOL_REQUESTS: Final = 32
"""Open in one pool at most. With each request and each answer httpcore looks at every connection of its pool,
once for each of them: 300 at once take it seconds of the processor, which would count as a server's."""


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncBaseTransport
    open: int = 0


class Pools(httpx.AsyncBaseTransport):
    """Spreads requests over as many pools as they need, and no more."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer of the first pool with room."""
        pool = self._with_room()
        pool.open += 1
        try:
            answer = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.open -= 1
            raise
        assert isinstance(answer.stream, httpx.AsyncByteStream)  # noqa: S101 - as httpx promises
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Counted(answer.stream, pool),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Closes all connections."""
        for pool in self._pools:
            await pool.transport.aclose()

    def _with_room(self) -> _Pool:
        for pool in self._pools:
            if pool.open < POOL_REQUESTS:
                return pool
        self._pools.append(_Pool(self._make()))
        return self._pools[-1]


class _Counted(httpx.AsyncByteStream):
    """An answer's body, which is open in its pool until it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, pool: _Pool) -> None:
        self._stream = stream
        self._pool: _Pool | None = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        """Closes it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.open -= 1
        await self._stream.aclose()
