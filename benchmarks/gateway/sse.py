"""Streams as a benchmark reads them: raw HTTP/1.1, an event at a time, with its id to go on elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `at` is the monotonic time it was read."""

    name: str
    data: Any
    id: str
    at: float


@asynccontextmanager
async def opened(
    url: str, path: str, last_event_id: str = "", body: object = None
) -> AsyncIterator[asyncio.StreamReader]:
    """A connection whose head was read; what follows is events, in chunks.

    Raises:
        RuntimeError: the status is not 200.
    """
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
    payload = b"" if body is None else json.dumps(body).encode()
    head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"host: {where.netloc}"]
    if last_event_id:
        head.append(f"last-event-id: {last_event_id}")
    if payload:
        head += ["content-type: application/json", f"content-length: {len(payload)}"]
    try:
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + payload)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        if answer.split(b" ", 2)[1] != b"200":
            raise RuntimeError((answer + await reader.read(2000)).decode(errors="replace"))
        yield reader
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncGenerator[Event, None]:
    """The events of a stream. Chunks begin and end at lines, so their sizes are just lines nobody wants."""
    name = event_id = ""
    data = b""
    async for line in reader:
        if line.startswith(b"data:"):
            data = line[5:].strip()
        elif line.startswith(b"event:"):
            name = line[6:].decode().strip()
        elif line.startswith(b"id:"):
            event_id = line[3:].decode().strip()
        elif line in {b"\n", b"\r\n"} and data:
            now = time.monotonic()
            yield Event(name, json.loads(data) if data[:1] == b"{" else None, event_id, now)
            name, data = "", b""
