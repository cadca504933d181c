"""A bus on which a process of an earlier release speaks and hears: see `old_release`.

A proxy before NATS that rewrites what is published to, and delivered from, the subjects of values.
(The protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from tests.support.old_release import OldRelease

PACKAGE: Final = "parrot_proto.values.v1"
_WITH_PAYLOAD: Final = {b"PUB", b"HPUB", b"MSG", b"HMSG"}
_SUBJECT_HEADER: Final = re.compile(rb"^Nats-Subject: (\S+)\r$", re.M)
_MESSAGES: Final = (
    (re.compile(r"(live\.)?sv\.delta\.[^.]+\.[^.]+\.[^.]+"), "StepDeltas"),
    (re.compile(r"(live\.)?sv\.state\.[^.]+\.[^.]+\.[^.]+"), "SessionStates"),
    (re.compile(r"(live\.)?sv\.final\.[^.]+\.[^.]+\.[^.]+\.[^.]+"), "Final"),
    (re.compile(r"(live\.)?sv\.final\.[^.]+\.[^.]+\.[^.]+\.[^.]+\.\d+"), "FinalPart"),
    (re.compile(r"(live\.)?sv\.final\.[^.]+\.[^.]+\.[^.]+\.[^.]+\.rollout\.\d+"), "Rollout"),
)


@dataclass(slots=True)
class OldBus:
    """The proxy: `url` is where an earlier release finds its NATS; `seen`, the messages it let through."""

    release: OldRelease
    server: str
    url: str = ""
    seen: set[str] = field(default_factory=set)
    _passing: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _closed: bool = False

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[OldBus]:
        """Serves for the length of the `async with`."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
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
        parts = urlsplit(self.server)
        ends, ways = [writer], list[asyncio.Task[None]]()
        try:
            there, back = await asyncio.open_connection(parts.hostname, parts.port)
            ends.append(back)
            ways += [
                asyncio.create_task(self._pass_on(reader, back)),
                asyncio.create_task(self._pass_on(there, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # All of it before the first wait: that may be cancelled.
            for way in ways:
                way.cancel()
            for end in ends:
                end.close()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while line := await source.readline():
            words = line.split()
            if words and words[0].upper() in _WITH_PAYLOAD:
                body = await source.readexactly(int(words[-1]) + len(b"\r\n"))
                sink.write(self._known(words, body[:-2]))
            else:
                sink.write(line)
            await sink.drain()

    def _known(self, words: list[bytes], body: bytes) -> bytes:
        """A message with its headers as they are, and of its payload what the release knows."""
        with_headers = words[0].upper().startswith(b"H")
        split = int(words[-2]) if with_headers else 0
        headers, payload = body[:split], body[split:]
        subject = words[1].decode()
        if (found := _SUBJECT_HEADER.search(headers)) is not None:
            # The answer to a direct get.
            subject = found[1].decode()
        for pattern, message in _MESSAGES:
            if payload and pattern.fullmatch(subject):
                self.seen.add(message)
                payload = self.release.known(f"{PACKAGE}.{message}", payload)
        sizes = [b"%d" % split] if with_headers else []
        head = words[: -2 if with_headers else -1]
        line = b" ".join([*head, *sizes, b"%d" % (split + len(payload))])
        return line + b"\r\n" + headers + payload + b"\r\n"
