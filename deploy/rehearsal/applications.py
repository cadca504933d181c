"""The applications that run during a rehearsal, each the same again and again: its values must be, too."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

import parrot as P
from parrot.sse import Event, Parser

PARTS: Final = 4
LINKS: Final = 4
PAUSE_S: Final = 0.2
CONNECT_S: Final = 5.0
SILENCE_S: Final = 45.0
CUT_AFTER: Final = 6
"""Deltas after which the reader of one in two connections goes away."""
ENDS: Final = frozenset({"ready", "failed", "cancelled"})

_short: Final = P.SamplingConfig(temperature=0, max_gen_length=120)
_long: Final = P.SamplingConfig(temperature=0, max_gen_length=400, ignore_tokenizer_eos=True)

summarise: Final = P.define("summarise", "Of part {{part}}, this matters: {{output:text}}", sampling=_short)
combine: Final = P.define(
    "combine",
    " ".join(f"{{{{part_{number}}}}}" for number in range(PARTS)) + " In short: {{output:text}}",
    sampling=_short,
)
go_on: Final = P.define("go_on", "After {{text}} comes this: {{output:next}}", sampling=_short)
tell: Final = P.define("tell", "A long story of {{topic}}: {{output:story}}", sampling=_long)


class Wrong(Exception):
    """What was read is not what it should be."""


@dataclass
class Run:
    """One run of an application.

    Attributes:
        values: of its outputs, in their order.
        first_text_s: when the first text came, from the start.
        connections: of its readers that count them.
    """

    started: float = field(default_factory=time.monotonic)
    values: list[str] = field(default_factory=list)
    first_text_s: float | None = None
    connections: int = 0

    def heard(self) -> None:
        """Text came."""
        if self.first_text_s is None:
            self.first_text_s = time.monotonic() - self.started


async def map_reduce(run: Run, number: int) -> None:
    """Parts at once, and one call that reads them all, whose text is streamed."""
    async with P.Session(label=f"map-reduce {number}"):
        parts = [summarise(f"{number}.{part}") for part in range(PARTS)]
        whole = combine(*parts)
        run.values.append(await _streamed(run, whole))
        run.values += [await part.aget() for part in parts]


async def chain(run: Run, number: int) -> None:
    """Calls one behind another, of which the client waits for the last."""
    async with P.Session(label=f"chain {number}"):
        links = [summarise(f"chain {number}")]
        while len(links) < LINKS:
            links.append(go_on(links[-1]))
        last = await links[-1].aget()
        run.heard()
        run.values += [last, *[await link.aget() for link in links[:-1]]]


async def story(run: Run, number: int) -> None:
    """One long text with three readers: the SDK, one that hears all, and one that goes away again and again.

    Raises:
        Wrong: a reader missed something, or read something twice.
    """
    async with P.Session(label=f"story {number}") as session:
        text = tell(f"number {number}")
        await session.aflush()
        path = f"/v1/sessions/{session.id}/variables/{text.id}/stream"
        headers = {"Authorization": f"Bearer {os.environ.get('PARROT_API_KEY', '')}"}
        timeout = httpx.Timeout(CONNECT_S, read=SILENCE_S)
        async with httpx.AsyncClient(base_url=session.url, headers=headers, timeout=timeout) as client:
            readers = [Reader(client, path), Reader(client, path, leaves=True)]
            streamed, *read = await asyncio.gather(
                _streamed(run, text), *(reader.whole() for reader in readers)
            )
        run.connections = sum(reader.connections for reader in readers)
        if any(other != streamed for other in read):
            raise Wrong(f"three readers of one text read {[streamed, *read]}")
        run.values.append(streamed)


APPLICATIONS: Final[dict[str, Callable[[Run, int], Awaitable[None]]]] = {
    "map-reduce": map_reduce,
    "chain": chain,
    "story": story,
}


class Reader:
    """Reads a variable from its first byte to its last, over as many connections as it takes.

    Attributes:
        connections: how many it took.
    """

    def __init__(self, client: httpx.AsyncClient, path: str, *, leaves: bool = False) -> None:
        self._client = client
        self._path = path
        self._leaves = leaves
        self._data = bytearray()
        self._last_id = ""
        self.connections = 0

    async def whole(self) -> str:
        """The text.

        Raises:
            Wrong: bytes were left out or came twice, or the variable has no text.
        """
        while True:
            self.connections += 1
            try:
                if await self._connection():
                    return self._data.decode()
            except httpx.HTTPError:
                pass
            await asyncio.sleep(PAUSE_S)

    async def _connection(self) -> bool:
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        goes_after = CUT_AFTER if self._leaves and self.connections % 2 else 0
        async with self._client.stream("GET", self._path, headers=headers) as answer:
            if answer.status_code >= 500 or answer.status_code == 429:
                return False
            if not answer.is_success:
                raise Wrong(f"{answer.status_code}: {(await answer.aread()).decode()}")
            parser, deltas = Parser(), 0
            async for block in answer.aiter_bytes():
                for event in parser.feed(block):
                    if self._take(event):
                        return True
                    deltas += event.event == "delta"
                if deltas and deltas == goes_after:
                    return False
        return False

    def _take(self, event: Event) -> bool:
        """Whether that was the end."""
        data = json.loads(event.data)
        if event.event == "delta":
            if data["offset"] != len(self._data):
                raise Wrong(f"text from byte {data['offset']} came after {len(self._data)} bytes")
            self._data += data["text"].encode()
            self._last_id = event.id
        elif event.event == "done":
            if data["size_bytes"] != len(self._data):
                raise Wrong(f"the end came after {len(self._data)} of {data['size_bytes']} bytes")
            return True
        elif data.get("state") in ENDS:
            raise Wrong(f"the text has ended as {data}")
        return False


async def _streamed(run: Run, variable: P.SemanticVariable) -> str:
    pieces: list[str] = []
    async for piece in variable.astream():
        run.heard()
        pieces.append(piece)
    return "".join(pieces)
