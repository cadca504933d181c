"""A bus on which a process of an earlier release speaks and hears: see `old_release`.

A proxy before NATS that rewrites what is published to, and delivered from, the subjects of values.
(The protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol)
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from tests.support.old_release import OldRelease
from tests.support.passing import Proxy

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


class OldBus(Proxy):
    """The proxy: `url` is where an earlier release finds its NATS; `seen`, the messages it let through."""

    def __init__(self, release: OldRelease, server: str) -> None:
        super().__init__(server)
        self.seen: set[str] = set()
        self._release = release

    async def there(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """What the release publishes."""
        await self._known_of(client, server)

    async def back(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """What is delivered to it."""
        await self._known_of(server, client)

    async def _known_of(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
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
                payload = self._release.known(f"{PACKAGE}.{message}", payload)
        sizes = [b"%d" % split] if with_headers else []
        head = words[: -2 if with_headers else -1]
        line = b" ".join([*head, *sizes, b"%d" % (split + len(payload))])
        return line + b"\r\n" + headers + payload + b"\r\n"
