"""Streams are followed over broken connections: nothing is told twice, and none keeps others waiting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from parrot import connections, watching
from parrot.connections import pool
from parrot.errors import RequestRefused, ServerUnavailable, SessionError

pytestmark = pytest.mark.anyio


def told(kind: str, event_id: str = "", **data: Any) -> bytes:
    """An event as it is sent."""
    place = f"id: {event_id}\n" if event_id else ""
    return f"{place}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


SESSION = told("session", id="s", state="open")
HELLO = told("delta", semantic_var_id="v", offset=0, text="Hello")
SNAPSHOT = told("snapshot", "s:1")
WORLD = told("delta", "s:2", semantic_var_id="v", offset=5, text=" world")
DONE = told("done", "s:3", state="closed")


class Server:
    """Stands for a client of a server whose connections each send so much and break.

    Attributes:
        asked: from where each was to go on.
    """

    def __init__(self, *connections: list[bytes]) -> None:
        self.retry_s = 15.0
        self.asked: list[str] = []
        self._connections = list(connections)

    @asynccontextmanager
    async def events(
        self, path: str, last_event_id: str, silence_s: float, wanted: object
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of the next connection."""
        self.asked.append(last_event_id)

        async def blocks() -> AsyncIterator[bytes]:
            for block in self._connections.pop(0):
                yield block
            if self._connections:
                raise ServerUnavailable("broken")

        yield blocks()


async def read(server: Any) -> list[tuple[str, str]]:
    """The kinds and the texts of what an application is told."""
    events = watching.events(server, "/v1/sessions/s/events", 20)
    return [(event.kind, event.data.get("text", "")) async for event in events]


ALL = [("session", ""), ("delta", "Hello"), ("snapshot", ""), ("delta", " world"), ("done", "")]


@pytest.mark.parametrize("sent", range(4))
async def test_a_snapshot_that_breaks_off_is_told_once_when_it_is_whole(sent: int) -> None:
    whole = [SESSION, HELLO, SNAPSHOT, WORLD, DONE]
    rest = whole if sent < 3 else [WORLD, DONE]
    server = Server(whole[:sent], rest)
    assert await read(server) == ALL
    assert server.asked == ["", "s:1" if sent == 3 else ""]


async def test_a_snapshot_that_breaks_off_again_and_again_is_told_once() -> None:
    server = Server(*3 * [[SESSION, HELLO]], [SESSION, HELLO, SNAPSHOT, WORLD], [DONE])
    assert await read(server) == ALL
    assert server.asked == ["", "", "", "", "s:2"]


async def test_an_error_ends_it_also_before_the_snapshot() -> None:
    with pytest.raises(RequestRefused, match="gone"):
        await read(Server([SESSION, told("error", status=410, type="expired_cursor", detail="gone")]))


async def test_a_stream_too_many_is_an_error_and_keeps_no_wait_from_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "STREAMS_AT_ONCE", 2)
    more: Any = Server([SESSION, SNAPSHOT, DONE])
    with ExitStack() as streams:
        for _ in range(2):
            streams.enter_context(pool().stream())
        with pytest.raises(SessionError, match="2 streams"):
            await read(more)
        assert not pool().waits.locked()
    assert await read(more)


async def test_a_reader_that_leaves_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STREAMS_AT_ONCE", 1)
    for _ in range(3):
        server: Any = Server([SESSION, SNAPSHOT, DONE])
        async with aclosing(watching.events(server, "/v1/sessions/s/events", 20)) as events:
            assert (await anext(events)).kind == "session"
