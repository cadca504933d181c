"""A session's events at the gateway: what it makes of the log, of its lack, and of readers that are slow."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.engine import Pen
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway
from tests.support.nats import free_port

from parrot.sse import Event, Parser
from parrot_gateway import session_events
from parrot_gateway.closing import Closing
from parrot_gateway.gateway import DEFAULT_TENANT, Gateway
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.managers import Managers
from parrot_gateway.session_news import renderer
from parrot_gateway.settings import GatewaySettings
from parrot_proto.common.v1 import common_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.bus import DELTA_AGE_S, Bus
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.session_log import SessionLog, SessionLogs
from parrot_runtime.values.states import StateSubject
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio


class Session:
    """A session of the fake manager, which tells of it as the real one would."""

    def __init__(self, fake: FakeManager, bus: Bus, session_id: str) -> None:
        self.fake = fake
        self.id = session_id
        self.names = SessionSubjects(DEFAULT_TENANT, session_id)
        self.pen = Pen(bus, session_id, "y")
        self.path = f"/v1/sessions/{session_id}/events"
        self._subject = StateSubject(bus)
        self._after = 0
        self._bus = bus

    async def tell(self, kind: str, name: str, state: str) -> None:
        change = values_pb2.StateChange(kind=kind, id=name, state=state)
        self._after = await self._subject.append(
            self.names, values_pb2.SessionStates(epoch=1, changes=[change]), self._after
        )

    def end(self) -> None:
        """It ends at the manager, which has not told yet."""
        self.fake.sessions[self.id].session.state = common_pb2.SESSION_STATE_CLOSED

    async def purge(self) -> None:
        await self._bus.js.purge_stream("PARROT_DELTAS", subject=self.names.log)


@pytest.fixture
async def session(http: httpx.AsyncClient, fake: FakeManager, bus: Bus) -> Session:
    session_id = (await http.post("/v1/sessions")).json()["id"]
    output = {"name": "y", "in_out": "out", "semantic_var_id": "y"}
    await http.post(f"/v1/sessions/{session_id}/calls", json={"prompt": "a {{y}}", "placeholders": [output]})
    return Session(fake, bus, session_id)


@pytest.fixture
async def gateway_here(manager: tuple[FakeManager, str], nats_url: str, bus: Bus) -> AsyncIterator[Gateway]:
    """A gateway without HTTP, whose readers are as slow as the test."""
    managers = Managers([manager[1]], 1.0)
    client = ManagerClient(managers, DEFAULT_TENANT)
    logs = SessionLogs(bus, renderer, session_events.stored_values(client))
    settings = GatewaySettings.load(["--heartbeat-s", "0.1", "--nats-url", nats_url])
    yield Gateway(settings, client, bus, Feeds(bus), Closing(), logs)
    await managers.close()


@asynccontextmanager
async def reading(gateway: Gateway, session: Session, last_event_id: str = "") -> AsyncIterator[Any]:
    """Events one at a time, as they are taken."""
    parser = Parser()
    async with session_events.session_events(gateway, session.id, last_event_id) as blocks:

        async def events() -> AsyncGenerator[Event, None]:
            async for block in blocks:
                for event in parser.feed(block):
                    yield event

        async with aclosing(events()) as found:
            yield found


async def names(events: AsyncIterator[Event]) -> list[str]:
    return [event.event async for event in events]


async def test_a_reader_that_falls_behind_is_told_and_goes_on_where_it_was(
    gateway_here: Gateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parrot_runtime.values.session_log.KEPT_BYTES", 3_000)
    await session.pen.write("w000 ")
    async with reading(gateway_here, session) as events:
        first = [await anext(events) for _ in range(3)]
        assert [event.event for event in first] == ["session", "delta", "snapshot"]
        await session.pen.write(*(f"w{n:03} " for n in range(1, 200)))
        log = gateway_here.logs.opened(session.id)
        assert log is not None
        await eventually(lambda: log.entries.end == 200)
        rest = [event async for event in events]
    assert [event.event for event in rest] == ["error"]
    assert json.loads(rest[0].data)["type"] == "urn:parrot:problem:slow_reader"
    async with reading(gateway_here, session, first[-1].id) as events:
        text = "".join([json.loads((await anext(events)).data)["text"] for _ in range(199)])
    assert text == session.pen.text[5:]


async def test_one_who_goes_on_from_far_back_keeps_only_what_it_has_not_had(
    gateway_here: Gateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parrot_runtime.values.session_log.KEPT_BYTES", 3_000)
    await session.pen.write(*(f"w{n:03} " for n in range(100)))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reading(gateway_here, session))
        made: list[SessionLog] = []
        alone = gateway_here.logs.alone

        def remember(*given: Any) -> SessionLog:
            made.append(alone(*given))
            return made[-1]

        monkeypatch.setattr(gateway_here.logs, "alone", remember)
        events = await stack.enter_async_context(reading(gateway_here, session, f"{session.id}:{1 << 17}"))
        for _ in range(80):
            await anext(events)
        (mine,) = made
        assert mine.entries.first >= 79


async def test_an_idle_session_can_be_gone_on_from_however_long_ago_that_was(
    gateway_here: Gateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.tell("call", "c-1", "running")
    async with reading(gateway_here, session) as events:
        event_id = [await anext(events) for _ in range(3)][-1].id
    monkeypatch.setattr("parrot_gateway.session_cursor.SURE_S", -1)
    async with reading(gateway_here, session, event_id) as events:
        await session.tell("call", "c-1", "done")
        assert json.loads((await anext(events)).data)["state"] == "done"


async def test_what_may_have_gone_with_its_age_is_said_to_have(
    http: httpx.AsyncClient, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.tell("call", "c-1", "running")
    first = f"{session.id}:{await _first_sequence(http, session) + 1}"
    await session.tell("call", "c-1", "done")
    monkeypatch.setattr("parrot_gateway.session_cursor.SURE_S", -DELTA_AGE_S)
    answer = await http.get(session.path, headers={"Last-Event-ID": first})
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:parrot:problem:expired_cursor")


async def _first_sequence(http: httpx.AsyncClient, session: Session) -> int:
    """The number before the first event of a session's only message."""
    async with http.stream("GET", session.path) as response:
        parser = Parser()
        async for block in response.aiter_bytes():
            for event in parser.feed(block):
                if event.event == "snapshot":
                    return int(event.id.partition(":")[2]) - (1 << 17)
    raise AssertionError("no snapshot")


async def test_a_purged_session_is_shown_as_its_manager_has_it(
    http: httpx.AsyncClient, session: Session
) -> None:
    await session.tell("session", session.id, "closed")
    session.end()
    last = Parser().feed((await http.get(session.path)).content)
    event_id = list(last)[-1].id
    await session.purge()
    answer = await http.get(session.path)
    shown = list(Parser().feed(answer.content))
    assert [event.event for event in shown] == ["session", "call", "variable", "snapshot", "done"]
    again = await http.get(session.path, headers={"Last-Event-ID": shown[-1].id})
    assert [event.event for event in Parser().feed(again.content)] == ["done"]
    answer = await http.get(session.path, headers={"Last-Event-ID": event_id})
    assert (answer.status_code, answer.json()["field"]) == (410, "Last-Event-ID")


async def test_an_end_that_was_never_told_is_learnt_from_the_manager(
    gateway_here: Gateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_events, "ASK_AGAIN_S", 0)
    await session.tell("call", "c-1", "running")
    async with reading(gateway_here, session) as events:
        await anext(events)
        session.fake.finish(session.id, "y", "abc")
        session.end()
        assert await names(events) == ["call", "snapshot", "session", "call", "variable", "done"]


async def test_a_gateway_that_stops_says_so(gateway_here: Gateway, session: Session) -> None:
    async with session_events.session_events(gateway_here, session.id, "") as blocks:
        found = [await anext(blocks) for _ in range(3)]
        gateway_here.closing.begin()
        found += [block async for block in blocks]
    assert found[-1].startswith(b"retry:")
    assert replace(gateway_here).logs.opened(session.id) is None


async def test_many_idle_streams_hear_of_what_comes_and_leave_nothing_behind(
    gateway_here: Gateway, session: Session
) -> None:
    """Of one gateway's readers all but the first few cost memory alone: they share what is heard."""
    parsers = [Parser() for _ in range(500)]
    subscriptions = len(gateway_here.bus.client._subs)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(session_events.session_events(gateway_here, session.id, ""))
            for _ in parsers
        ]
        for blocks in streams:
            assert await anext(blocks) == b": alive\n\n"
        assert len(gateway_here.bus.client._subs) == subscriptions + 1
        waiting = [asyncio.create_task(_until_delta(*each)) for each in zip(streams, parsers, strict=True)]
        await session.pen.write("é")
        assert set(await asyncio.gather(*waiting)) == {"é"}
    assert len(gateway_here.bus.client._subs) == subscriptions


async def _until_delta(blocks: AsyncIterator[bytes], parser: Parser) -> str:
    async for block in blocks:
        for event in parser.feed(block):
            if event.event == "delta":
                return str(json.loads(event.data)["text"])
    raise AssertionError("the stream ended")


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin:/bin")


@contextmanager
def proxied(upstream: str, folder: Path) -> Iterator[str]:
    """The gateway behind an nginx of untouched defaults, but that it gives up after a second of silence."""
    port = free_port()
    (folder / "nginx.conf").write_text(f"""
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; proxy_read_timeout 1s; }} }}
}}
""")
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(NGINX is None, reason="nginx is not here")
@pytest.mark.parametrize("events", [True, False])
async def test_a_buffering_proxy_hands_on_each_piece_and_cuts_nothing(
    gateway: RunningGateway, session: Session, tmp_path: Path, *, events: bool
) -> None:
    path = session.path if events else f"/v1/sessions/{session.id}/variables/y/stream"
    with proxied(gateway.url, tmp_path) as url:
        async with (
            httpx.AsyncClient(timeout=20, transport=httpx.AsyncHTTPTransport(retries=5)) as client,
            client.stream("GET", url + path) as response,
        ):
            assert response.status_code == 200
            raw, blocks = b"", response.aiter_bytes()
            # Longer than the proxy waits for.
            while raw.count(b": alive") < 25:
                raw += await anext(blocks)
            for piece in ("é", "漢", "🦜"):
                await session.pen.write(piece)
                while piece.encode() not in raw:
                    raw += await anext(blocks)
