"""Readers of variables, and what each of them read."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

PAUSE_S: Final = 0.2
ENDS: Final = frozenset({"ready", "failed", "cancelled"})


@dataclass
class Transcript:
    """What one reader of one variable read, over all its connections.

    Attributes:
        faults: where a stream broke its promises.
        state: of the variable, at its end.
    """

    session_id: str
    variable_id: str
    data: bytearray = field(default_factory=bytearray)
    faults: list[str] = field(default_factory=list)
    state: str = ""
    connections: int = 0

    def add(self, offset: int, text: str) -> None:
        """Takes a delta in: it goes on exactly where the one before ended."""
        if offset != len(self.data):
            self.faults.append(f"a delta at {offset} after {len(self.data)} bytes")
            return
        self.data += text.encode()

    def end(self, state: str, size_bytes: int | None) -> None:
        """Takes the end in."""
        self.state = state
        if size_bytes is not None and size_bytes != len(self.data):
            self.faults.append(f"it ended after {len(self.data)} of {size_bytes} bytes")


async def follow(client: httpx.AsyncClient, session_id: str, variable_id: str) -> Transcript:
    """Reads a variable to its end, connecting again and again."""
    transcript = Transcript(session_id, variable_id)
    path = f"/v1/sessions/{session_id}/variables/{variable_id}/stream"
    while not transcript.state:
        transcript.connections += 1
        event_id = f"{session_id}/{variable_id}:{len(transcript.data)}"
        headers = {"Last-Event-ID": event_id} if transcript.data else {}
        try:
            async with client.stream("GET", path, headers=headers) as answer:
                if answer.status_code == 200:
                    await _read(answer, transcript)
                elif answer.status_code < 500:
                    transcript.faults.append(f"{answer.status_code}: {(await answer.aread()).decode()}")
                    transcript.state = "refused"
        except httpx.HTTPError:
            pass
        if not transcript.state:
            await asyncio.sleep(PAUSE_S)
    return transcript


async def _read(answer: httpx.Response, transcript: Transcript) -> None:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            _take(transcript, name, json.loads(line.removeprefix("data: ")))


def _take(transcript: Transcript, name: str, data: dict[str, Any]) -> None:
    if name == "delta":
        transcript.add(data["offset"], data["text"])
    elif name == "done":
        transcript.end(data["state"], data["size_bytes"])
    elif data.get("state") in ENDS:
        transcript.end(data["state"], None)
    # Otherwise the gateway is in trouble, not the variable: the reader comes again.
