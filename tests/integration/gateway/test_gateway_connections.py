"""Connections whose heads don't come are cut, with each of the protocols uvicorn has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from parrot_gateway.doors.connections import HEAD_BYTES, impatient_protocol

pytestmark = pytest.mark.anyio

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD_S = 0.3


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Waits for the body of what is sent to /whole, and answers."""
    while scope["path"] == "/whole" and (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"3")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok."})


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Where a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        protocol = impatient_protocol(HEAD_S, request.param)
        config = uvicorn.Config(answer, http=protocol, log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await serving


@pytest.fixture
async def connection(port: int) -> AsyncIterator[Connection]:
    """A bare connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield reader, writer
    writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All that still comes; a connection that is not closed fails."""
    return await asyncio.wait_for(reader.read(), 5)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_who_says_nothing_or_half_a_head_is_cut_off(connection: Connection, sent: bytes) -> None:
    reader, writer = connection
    writer.write(sent)
    told = await rest_of(reader)
    assert told.startswith(b"HTTP/1.1 408") if sent else not told


async def test_who_sends_a_head_byte_by_byte_is_cut_off_all_the_same(connection: Connection) -> None:
    reader, writer = connection

    async def trickle() -> None:
        for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"x" * 1_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(HEAD_S / 10)

    trickling = asyncio.create_task(trickle())
    # Who still sends may be told so by a reset.
    with suppress(ConnectionResetError):
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 408")
    trickling.cancel()


async def test_a_connection_that_was_used_is_cut_off_in_the_middle_of_its_next_head(
    connection: Connection,
) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"ok."), 5)
    writer.write(b"GET /")
    assert (await rest_of(reader)).startswith(b"HTTP/1.1 408")


async def test_a_head_without_end_is_cut_off(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * (2 * HEAD_BYTES))
    status = await asyncio.wait_for(reader.readline(), 5)
    assert status.split()[1] in {b"431", b"400"}


async def test_a_body_may_take_longer_than_a_head(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    for byte in b"body":
        await asyncio.sleep(HEAD_S / 2)
        writer.write(bytes([byte]))
    assert b"200" in await asyncio.wait_for(reader.readline(), 5)


async def test_a_body_that_was_answered_already_is_let_run_out_so_long_as_it_comes_in_time(
    connection: Connection,
) -> None:
    reader, writer = connection
    size = 4 * HEAD_BYTES
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"ok."), 5)
    writer.write(b"x" * size)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"ok."), 5)


async def test_one_that_never_comes_is_not_waited_for(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"ok."), 5)
    writer.write(b"x")
    await rest_of(reader)
