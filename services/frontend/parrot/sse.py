"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event, with the last id seen."""

    event: str
    data: str
    id: str


class Parser:
    """Turns bytes, cut anywhere, into events. Comments are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._id = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            event = self._take(line.removesuffix(b"\r").decode())
            if event is not None:
                yield event

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._flush()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        return None

    def _flush(self) -> Event | None:
        event = Event(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event = ""
        self._data = []
        return event
