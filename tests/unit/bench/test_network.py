"""The network's delay: half of it before a request, half of it before every byte of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from parrot_bench import network
from parrot_bench.network import Distant

pytestmark = pytest.mark.anyio

RTT_MS = 40.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Body(httpx.AsyncByteStream):
    """Chunks that are there when they are let go; `error` ends them."""

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self.chunks = chunks
        self.error = error
        self.go = asyncio.Event()
        self.read: list[float] = []
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            self.read.append(asyncio.get_running_loop().time())
            yield chunk
        await self.go.wait()
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.closed = True


class Server(httpx.AsyncBaseTransport):
    """Answers every request with one body."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.asked: list[float] = []
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(asyncio.get_running_loop().time())
        return httpx.Response(200, stream=self.body)

    async def aclose(self) -> None:
        self.closed = True


async def test_a_request_and_its_answer_take_the_way_each() -> None:
    loop = asyncio.get_running_loop()
    body = Body(b"a", b"b")
    body.go.set()
    server = Server(body)
    began = loop.time()
    async with httpx.AsyncClient(transport=Distant(server, RTT_MS)) as client:
        answer = await client.get("http://server/")
    assert answer.content == b"ab"
    assert server.asked[0] - began > 0.0195
    assert loop.time() - server.asked[0] > 0.0195
    assert body.closed
    assert server.closed


async def test_what_is_written_meanwhile_is_on_its_way_as_well() -> None:
    """The server's chunks are taken in before their reader, half a round trip later, sees the first."""
    loop = asyncio.get_running_loop()
    body = Body(b"a", b"b", b"c")
    seen: list[float] = []
    async with (
        httpx.AsyncClient(transport=Distant(Server(body), RTT_MS)) as client,
        client.stream("GET", "http://server/") as answer,
    ):
        assert len(body.read) == 3
        async for _ in answer.aiter_raw():
            seen.append(loop.time())
            if len(seen) == 3:
                body.go.set()
    assert all(got - sent > 0.0195 for got, sent in zip(seen, body.read, strict=True))


async def test_a_stream_that_breaks_breaks_for_its_reader() -> None:
    body = Body(b"a", error=httpx.ReadError("gone"))
    body.go.set()
    async with httpx.AsyncClient(transport=Distant(Server(body), RTT_MS)) as client:
        with pytest.raises(httpx.ReadError, match="gone"):
            await client.get("http://server/")
    assert body.closed


async def test_who_leaves_early_leaves_nothing_running() -> None:
    before = asyncio.all_tasks()
    body = Body(b"a")
    async with httpx.AsyncClient(transport=Distant(Server(body), RTT_MS)) as client:
        async with client.stream("GET", "http://server/"):
            pass
        assert body.closed
        asking = asyncio.create_task(client.get("http://server/"))
        while len(body.read) < 2:
            await asyncio.wait({asking}, timeout=0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_without_a_distance_nothing_stands_between() -> None:
    async with network.client(0) as near, network.client(1) as far:
        assert not isinstance(near._transport, Distant)
        assert isinstance(far._transport, Distant)
