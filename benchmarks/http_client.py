"""A client that costs next to nothing, so that a benchmark measures the server: HTTP/1.1 over asyncio."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Streamed:
    """One stream, read to its end.

    Attributes:
        first_s: from the request to the first delta.
        last_s: from the request to the end.
        deltas: events that carried text.
        ended: the closing event, `done` or `error`.
    """

    first_s: float
    last_s: float
    deltas: int
    ended: str


async def request(url: str, method: str, path: str, body: object = None) -> Any:
    """The JSON a request is answered with.

    Raises:
        RuntimeError: the status is not 2xx.
    """
    reader, writer = await _send(url, method, path, body)
    raw = await reader.read()
    writer.close()
    head, _, payload = raw.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1][:1] != b"2":
        raise RuntimeError(raw.decode(errors="replace"))
    if b"chunked" in head.lower():
        payload = b"".join(payload.split(b"\r\n")[1::2])
    return json.loads(payload) if payload else None


async def stream(url: str, path: str) -> Streamed:
    """Reads a stream of server-sent events to its end, counting."""
    started = time.perf_counter()
    reader, writer = await _send(url, "GET", path, None)
    first = 0.0
    deltas = 0
    ended = ""
    async for line in reader:
        if line.startswith(b"event: delta"):
            first = first or time.perf_counter()
            deltas += 1
        elif line.startswith((b"event: done", b"event: error")):
            ended = line[7:].decode().strip()
            break
    writer.close()
    now = time.perf_counter()
    return Streamed((first or now) - started, now - started, deltas, ended)


async def _send(
    url: str, method: str, path: str, body: object
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 24)
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\nconnection: close\r\n"
    if payload:
        head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n"
    writer.write(f"{head}\r\n".encode() + payload)
    await writer.drain()
    return reader, writer
