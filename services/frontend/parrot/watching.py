"""What happens in a session, as it happens."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from parrot.client import Client, refusal_of
from parrot.errors import WaitTimeout
from parrot.following import follow
from parrot.sse import Event


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One thing that happened in a session.

    Attributes:
        kind: session, call, block or variable, when its state changed; delta, when text was written;
            snapshot, after how the session was when it was asked for; done, when it has ended.
        data: what of it, as the server tells it: `id` and `state`, or `semantic_var_id`, `offset` (in bytes
            of UTF-8) and `text`, ...
        id: its place; empty before the snapshot.
    """

    kind: str
    data: Mapping[str, Any]
    id: str


async def events(client: Client, path: str, timeout_s: float | None) -> AsyncGenerator[SessionEvent, None]:
    """A session's events up to its end, over as many connections as it takes.

    Raises:
        RequestRefused: there is no such session, or what was missed is gone.
        ServerUnavailable: the server can't be reached.
        WaitTimeout: it did not end in time.
    """
    async with aclosing(follow(client, path, _Events(timeout_s), timeout_s)) as news:
        async for told in news:
            for event in told:
                yield event


class _Events:
    """A session's events so far.

    Before the snapshot there is no place to go on from: what comes of it is held until it is whole, and
    forgotten when it is not, for the next connection begins with another.

    Attributes:
        last_event_id: where to go on from; empty before the snapshot.
        is_over: the session has ended.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._held: list[SessionEvent] = []
        self.last_event_id = ""
        self.is_over = False

    def begin(self) -> None:
        """What is held is of a snapshot that broke off."""
        self._held = []

    def take(self, event: Event) -> list[SessionEvent] | None:
        """The event, and with the snapshot what was held; None while it is held."""
        data = json.loads(event.data)
        if event.event == "error":
            raise refusal_of(data, int(data["status"]))
        self.last_event_id = event.id or self.last_event_id
        self.is_over = event.event == "done"
        self._held.append(SessionEvent(event.event, data, event.id))
        if not self.last_event_id and not self.is_over:
            return None
        told, self._held = self._held, []
        return told

    def late(self) -> WaitTimeout:
        """That the session did not end in time."""
        return WaitTimeout(f"the session did not end within {self._timeout_s:g} s; it may go on, ask again")
