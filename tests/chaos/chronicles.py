"""Readers of all events of a session, and what each of them made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from tests.chaos.transcripts import ENDS, PAUSE_S, Transcript

from parrot.sse import Event, Parser

ENDED: Final = {"call": {"done", "failed", "cancelled"}, "variable": ENDS}


@dataclass
class Chronicle:
    """What one reader heard of a session, over all its connections.

    Attributes:
        texts: of the variables it saw from their beginning on.
        ended: things that were told to have ended.
        is_news: the snapshot is over.
    """

    session_id: str
    texts: dict[str, Transcript] = field(default_factory=dict)
    ended: dict[tuple[str, str], str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    last_id: str = ""
    is_news: bool = False

    def take(self, event: Event) -> None:
        """Takes an event in: it comes once, and behind those before it."""
        data = json.loads(event.data)
        if self.is_news and event.id != self.last_id and self._number(event.id) <= self._number(self.last_id):
            self.faults.append(f"event {event.id} after {self.last_id}")
        self.last_id = event.id
        if event.event == "snapshot":
            self.is_news = True
        elif event.event == "delta":
            self._text(data["semantic_var_id"]).add(data["offset"], data["text"])
        elif event.event in ENDED and data["state"] in ENDED[event.event]:
            self._end(event.event, data)

    def transcripts(self) -> list[Transcript]:
        """What it read of each variable, for the faults of all of it the first answers."""
        found = list(self.texts.values())
        if self.faults:
            found = found or [Transcript(self.session_id, "events")]
            found[0].faults += self.faults
        return found

    def _end(self, kind: str, data: dict[str, Any]) -> None:
        name = kind, data["id"]
        if self.is_news and name in self.ended:
            self.faults.append(f"{name} ended as {self.ended[name]} and as {data['state']}")
        self.ended[name] = data["state"]
        # What was ready before it came it does not get the text of, nor what the client itself set.
        if kind == "variable" and self.is_news and data["producer_call_id"]:
            size_bytes = data["size_bytes"] if data["state"] == "ready" else None
            self._text(data["id"]).end(data["state"], size_bytes)

    def _text(self, variable_id: str) -> Transcript:
        return self.texts.setdefault(variable_id, Transcript(self.session_id, variable_id))

    def _number(self, event_id: str) -> int:
        return int(event_id.rpartition(":")[2] or 0)


async def follow_session(
    client: httpx.AsyncClient, session_id: str, outputs: Collection[str]
) -> list[Transcript]:
    """Reads a session's events until its outputs have ended, connecting again and again."""
    chronicle = Chronicle(session_id)
    while not all(("variable", name) in chronicle.ended for name in outputs) and not chronicle.faults:
        if not chronicle.is_news:
            # Nothing is to be gone on from yet.
            chronicle = Chronicle(session_id)
        headers = {"Last-Event-ID": chronicle.last_id} if chronicle.is_news else {}
        try:
            async with client.stream("GET", f"/v1/sessions/{session_id}/events", headers=headers) as answer:
                if answer.status_code == 200:
                    await _read(answer, chronicle, outputs)
                elif answer.status_code < 500:
                    chronicle.faults.append(f"{answer.status_code}: {(await answer.aread()).decode()}")
        except httpx.HTTPError:
            pass
        await asyncio.sleep(PAUSE_S)
    return chronicle.transcripts()


async def _read(answer: httpx.Response, chronicle: Chronicle, outputs: Collection[str]) -> None:
    parser = Parser()
    async for block in answer.aiter_bytes():
        for event in parser.feed(block):
            if event.event != "error":
                chronicle.take(event)
        if all(("variable", name) in chronicle.ended for name in outputs):
            return
