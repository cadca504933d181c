"""The monitor's HTTP: `/metrics`, `/healthz` and `/readyz`, one request a connection.

It runs on the service's own event loop, so that `/healthz` says something of the service, and what is
collected does not change meanwhile. The address is for operators: it asks nobody who they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client.exposition import choose_encoder

from parrot_runtime import errors
from parrot_runtime.errors import Fault

if TYPE_CHECKING:
    from parrot_runtime.monitor.monitor import Monitor

REQUEST_S: Final = 10.0
HEAD_BYTES: Final = 16_384
PLAIN: Final = "text/plain; charset=utf-8"

Answer = tuple[HTTPStatus, str, bytes]

log = structlog.get_logger()


@asynccontextmanager
async def listening(address: str, monitor: Monitor) -> AsyncIterator[None]:
    """Answers at `host:port` within the block; without a host, on the loopback.

    Raises:
        Fault: `invalid_request`, when the address can't be used.
    """
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                await _answer(monitor, reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Whoever asked is gone, or does not speak HTTP.
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(
            serve, host.strip("[]") or "127.0.0.1", int(port), limit=HEAD_BYTES
        )
    except (ValueError, OSError, OverflowError) as error:
        raise Fault(
            errors.INVALID_REQUEST,
            f"--metrics-address: nothing can be served at {address!r} ({error}); give a free host:port",
            field="metrics_address",
        ) from None
    log.info("monitor", address=_bound(server))
    try:
        yield
    finally:
        server.close()


def _bound(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _answer(monitor: Monitor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.split("\r\n")
    method, _, rest = line.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    accept = next((f.partition(":")[2].strip() for f in fields if f.lower().startswith("accept:")), "")
    if method not in {"GET", "HEAD"}:
        status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, b"GET and HEAD alone\n"
    else:
        status, kind, body = await _page_or_trouble(monitor, path, accept)
    writer.write(
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Allow: GET, HEAD\r\nConnection: close\r\n\r\n".encode("latin-1")
    )
    if method != "HEAD":
        writer.write(body)
    await writer.drain()


async def _page_or_trouble(monitor: Monitor, path: str, accept: str) -> Answer:
    try:
        return await _page(monitor, path, accept)
    except Exception:
        # The last resort: whoever looks after the service is told that it has a bug.
        log.exception("monitor failed", path=path)
        return HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, b"an unexpected error; the service's log has it\n"


async def _page(monitor: Monitor, path: str, accept: str) -> Answer:
    if path == "/metrics":
        encode, kind = choose_encoder(accept)
        return HTTPStatus.OK, kind, encode(monitor.registry)
    if path == "/healthz":
        return HTTPStatus.OK, PLAIN, b"ok\n"
    if path == "/readyz":
        reasons = await monitor.reasons()
        if reasons:
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, "".join(f"{why}\n" for why in reasons).encode()
        return HTTPStatus.OK, PLAIN, b"ready\n"
    return HTTPStatus.NOT_FOUND, PLAIN, b"/metrics, /healthz, /readyz\n"
