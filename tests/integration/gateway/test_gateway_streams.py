"""Streams: every byte once, whatever breaks; alive while silent; their end is the manager's."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from tests.support.engine import Pen
from tests.support.eventually import eventually
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway, running_gateway

from parrot.sse import Event, Parser
from parrot_gateway.events import EVENT_CHARS
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Feeds

pytestmark = pytest.mark.anyio
PIECES = [*(f"w{i:03} " for i in range(12)), "é", "漢字", "😀", "\u2028\x85\0\r\n", "end"]
TEXT = "".join(PIECES)


class Stream:
    """One connection to a variable's stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._bytes = response.aiter_bytes()
        self._parser = Parser()
        self._events: list[Event] = []
        self.raw = b""

    async def event(self) -> Event | None:
        """The next event; None at the stream's end."""
        while not self._events:
            block = await anext(self._bytes, None)
            if block is None:
                return None
            self.raw += block
            self._events += self._parser.feed(block)
        return self._events.pop(0)

    async def rest(self) -> tuple[str, Event | None]:
        """The text up to the last event, and that event."""
        text = ""
        while (event := await self.event()) is not None and event.event == "delta":
            text += json.loads(event.data)["text"]
        return text, event

    async def until(self, condition: Callable[[], bool]) -> None:
        """Reads raw bytes until the condition holds."""
        while not condition():
            self.raw += await anext(self._bytes)


class Running:
    """A session with one call, whose output is `y`."""

    def __init__(self, http: httpx.AsyncClient, fake: FakeManager, bus: Bus, session_id: str) -> None:
        self._http = http
        self.fake = fake
        self.session_id = session_id
        self.path = f"/v1/sessions/{session_id}/variables/y"
        self.pen = Pen(bus, session_id, "y")

    def stream(self, last_event_id: str | None = None, http: httpx.AsyncClient | None = None) -> Any:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        return (http or self._http).stream("GET", f"{self.path}/stream", headers=headers)

    def id_at(self, offset: int) -> str:
        """The id of an event that ends there."""
        return f"{self.session_id}/y:{offset}"

    async def end(self) -> None:
        """The value is on the bus, and committed."""
        await self.pen.end()
        self.fake.finish(self.session_id, "y", self.pen.text)


@pytest.fixture
async def running(http: httpx.AsyncClient, fake: FakeManager, bus: Bus) -> Running:
    session_id = (await http.post("/v1/sessions")).json()["id"]
    call = {
        "prompt": "a {{y}}",
        "placeholders": [{"name": "y", "in_out": "out", "semantic_var_id": "y"}],
    }
    await http.post(f"/v1/sessions/{session_id}/calls", json=call)
    return Running(http, fake, bus, session_id)


@pytest.fixture
def open_feeds(monkeypatch: pytest.MonkeyPatch) -> list[Feeds]:
    """The feeds a gateway made."""
    made: list[Feeds] = []
    init = Feeds.__init__

    def remember(self: Feeds, bus: Bus) -> None:
        init(self, bus)
        made.append(self)

    monkeypatch.setattr(Feeds, "__init__", remember)
    return made


async def test_headers_come_at_once_and_silence_is_filled(running: Running) -> None:
    async with running.stream() as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        stream = Stream(response)
        await stream.until(lambda: stream.raw.count(b": alive\n\n") >= 3)
        await running.pen.write("a")
        event = await stream.event()
        assert event is not None
        assert event.id == f"{running.session_id}/y:1"
        silent = len(stream.raw)
        await stream.until(lambda: stream.raw.count(b": alive\n\n", silent) >= 2)
        assert b"id:" not in stream.raw[silent:]


async def test_a_stream_is_the_text_and_then_its_end(running: Running) -> None:
    async with running.stream() as response:
        stream = Stream(response)
        await running.pen.write(*PIECES)
        await running.end()
        text, end = await stream.rest()
        assert text == TEXT
        assert end == Event(
            "done",
            json.dumps({"state": "ready", "size_bytes": len(TEXT.encode())}, separators=(",", ":")),
            running.id_at(len(TEXT.encode())),
        )
        assert await stream.event() is None


async def test_a_stream_goes_on_after_any_event(running: Running) -> None:
    await running.pen.write(*PIECES)
    running.fake.stream(running.session_id, "y")
    cuts = [len("".join(PIECES[:k]).encode()) for k in range(len(PIECES) + 1)]
    for live in (True, False):
        for cut in cuts:
            async with running.stream(running.id_at(cut)) as response:
                stream, text = Stream(response), ""
                while len(text.encode()) < len(TEXT.encode()) - cut:
                    event = await stream.event()
                    assert event is not None
                    text += json.loads(event.data)["text"]
                assert text == TEXT.encode()[cut:].decode()
                if not live:
                    assert (await stream.rest())[0] == ""
        await running.end()


async def test_text_written_while_nobody_listened_is_not_lost(running: Running) -> None:
    await running.pen.write(*PIECES[:5])
    async with running.stream() as response:
        stream = Stream(response)
        await stream.until(lambda: b"alive" in stream.raw)
        await running.pen.write(*PIECES[5:])
        await running.end()
        assert (await stream.rest())[0] == TEXT


@pytest.mark.parametrize(
    "event_id",
    ["abc", "-1", "9999999", "y:1", "{0}/z:1", "{0}/y:-1", "{0}/y:1:2", "s00-0123456789abcdef/y:1"],
)
async def test_an_id_of_another_stream_is_refused(running: Running, event_id: str) -> None:
    await running.pen.write("abc")
    async with running.stream(event_id.format(running.session_id)) as response:
        problem = json.loads(await response.aread())
        assert (response.status_code, problem["field"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("offset", [2, 1000])
async def test_an_offset_that_is_none_of_the_values_is_refused(running: Running, offset: int) -> None:
    await running.pen.write("aé")
    await running.end()
    async with running.stream(running.id_at(offset)) as response:
        assert response.status_code == 400
        await response.aread()


@pytest.mark.parametrize("written", ["", "abc"])
async def test_an_offset_that_is_not_reached_yet_is_refused_at_once(running: Running, written: str) -> None:
    if written:
        await running.pen.write(written)
        running.fake.stream(running.session_id, "y")
    async with running.stream(running.id_at(9_999_999)) as response:
        assert response.status_code == 400
        assert f"beyond the {len(written)} bytes so far" in (await response.aread()).decode()


async def test_what_another_gateway_showed_is_reached_though_nobody_listened_here(running: Running) -> None:
    await running.pen.write(*PIECES[:5])
    async with running.stream(running.id_at(len(running.pen.text.encode()))) as response:
        assert response.status_code == 200
        await running.pen.write(*PIECES[5:])
        await running.end()
        assert (await Stream(response).rest())[0] == "".join(PIECES[5:])


async def test_the_end_is_told_once_the_manager_has_it(running: Running) -> None:
    async with running.stream() as response:
        stream = Stream(response)
        await running.pen.write("abc")
        await running.pen.end()
        assert (await stream.event()) is not None
        heard = len(stream.raw)
        await stream.until(lambda: stream.raw.count(b": alive\n\n", heard) >= 2)
        assert b"done" not in stream.raw
        running.fake.finish(running.session_id, "y", "abc")
        assert (await stream.rest())[1] is not None


async def test_a_lost_announcement_is_healed_by_the_manager(running: Running) -> None:
    async with running.stream() as response:
        stream = Stream(response)
        await running.pen.write("abc")
        assert (await stream.event()) is not None
        running.fake.finish(running.session_id, "y", "abcdef")
        text, end = await stream.rest()
        assert text == "def"
        assert end is not None
        assert end.event == "done"


@pytest.mark.parametrize("bus_returns", [True, False])
async def test_a_stream_outlives_a_bus_that_is_away_when_its_value_is_fetched(
    running: Running, monkeypatch: pytest.MonkeyPatch, *, bus_returns: bool
) -> None:
    complete, away, tried = Finals.complete, asyncio.Event(), asyncio.Event()
    away.set()

    async def reached(self: Finals, *announced: Any) -> FinalRecord | None:
        if away.is_set():
            tried.set()
            raise Fault(errors.UNAVAILABLE, "the bus does not answer")
        return await complete(self, *announced)

    monkeypatch.setattr(Finals, "complete", reached)
    async with running.stream() as response:
        stream = Stream(response)
        await running.pen.write("abc")
        assert (await stream.event()) is not None
        await running.pen.end()
        await tried.wait()
        if bus_returns:
            away.clear()
        running.fake.finish(running.session_id, "y", "abc")
        text, end = await stream.rest()
        assert text == ""
        assert end is not None
        assert end.event == "done"


async def test_a_failure_ends_a_stream_with_its_cause(running: Running) -> None:
    fault = Fault(
        errors.UPSTREAM_FAILED, "c-0 failed", call_id="c-1", cause_type="engine_lost", cause_call_id="c-0"
    )
    async with running.stream() as response:
        stream = Stream(response)
        await running.pen.write("partial")
        running.fake.fail(running.session_id, "y", fault)
        await running.pen.end(FinalRecord("y", "c-1", 1, failure=fault.to_failure()))
        text, end = await stream.rest()
        assert text == "partial"
        assert end is not None
        problem = json.loads(end.data)
        assert (end.event, problem["state"], problem["call_id"]) == ("error", "failed", "c-1")
        assert problem["cause_type"] == "urn:parrot:problem:engine_lost"
        assert await stream.event() is None
    late = (await running._http.get(running.path)).json()
    assert (late["state"], late["error"]["cause_call_id"], late["value"]) == ("failed", "c-0", None)


async def test_a_cancelled_session_ends_its_streams(running: Running) -> None:
    async with running.stream() as response:
        stream = Stream(response)
        await stream.until(lambda: b"alive" in stream.raw)
        await running._http.delete(f"/v1/sessions/{running.session_id}")
        _, end = await stream.rest()
        assert end is not None
        assert json.loads(end.data)["state"] == "cancelled"


async def test_a_large_value_streams_in_bounded_events(running: Running) -> None:
    running.pen.text = "漢字 lorem " * 200_000
    await running.end()
    async with running.stream() as response:
        stream = Stream(response)
        text, _ = await stream.rest()
        assert text == running.pen.text
        assert max(map(len, stream.raw.split(b"\n\n"))) < 4 * EVENT_CHARS + 200


async def test_a_waiting_reader_gets_the_value_when_it_is_there(running: Running) -> None:
    reading = asyncio.create_task(running._http.get(running.path))
    await running.pen.write(*PIECES)
    await running.end()
    got = (await reading).json()
    assert (got["state"], got["value"]) == ("ready", TEXT)


async def test_a_client_that_goes_away_leaves_nothing_behind(
    open_feeds: list[Feeds], running: Running
) -> None:
    (feeds,) = open_feeds
    async with running.stream() as response:
        stream = Stream(response)
        await stream.until(lambda: b"alive" in stream.raw)
        waiting = asyncio.create_task(running._http.get(running.path))
        await eventually(lambda: [found.users for found in feeds._open.values()] == [2])
        await running.pen.write("abc")
        assert feeds._open
    waiting.cancel()
    await eventually(lambda: not feeds._open)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "value-replay" not in names


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own time-out")
async def test_a_reader_that_does_not_read_is_cut(
    manager: tuple[FakeManager, str], nats_url: str, running: Running
) -> None:
    running.pen.text = "lorem ipsum " * 600_000
    await running.end()
    async with running_gateway(manager[1], nats_url, "--unread-s", "0.5") as other:
        where = urlsplit(other.url)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect((where.hostname, where.port))
            reader.sendall(f"GET {running.path}/stream HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
            mine = reader.getsockname()[1]
            await eventually(lambda: where.port in _ports_connected_with(mine))
            await eventually(lambda: where.port not in _ports_connected_with(mine), within_s=30)


def _ports_connected_with(port: int) -> list[int]:
    """This process's ports that have a connection from a port: the server's end of it."""
    connections = psutil.Process().net_connections("tcp")
    return [one.laddr.port for one in connections if one.raddr and one.raddr.port == port]


async def test_stopping_ends_streams_and_waits_and_another_gateway_goes_on(
    manager: tuple[FakeManager, str], nats_url: str, running: Running
) -> None:
    async with running_gateway(manager[1], nats_url) as other, httpx.AsyncClient(base_url=other.url) as http:
        async with running.stream(http=http) as response:
            stream = Stream(response)
            await stream.until(lambda: b"alive" in stream.raw)
            waiting = asyncio.create_task(http.get(running.path))
            await running.pen.write("abc")
            event = await stream.event()
            assert event is not None
            other.stop.set()
            assert (await stream.rest()) == ("", None)
            assert b"retry: 500" in stream.raw
            assert (await waiting).json()["state"] == "pending"
        await other.task
    await running.pen.write("def")
    await running.end()
    async with running.stream(event.id) as response:
        assert (await Stream(response).rest())[0] == "def"


async def test_what_it_needs_is_named_when_it_is_not_there(
    manager: tuple[FakeManager, str], nats_url: str, gateway: RunningGateway
) -> None:
    port = gateway.url.rpartition(":")[2]
    for address, nats, flags, says in (
        (manager[1], "nats://127.0.0.1:1", [], "no NATS server answers at nats://127.0.0.1:1"),
        ("127.0.0.1:1", nats_url, [], "no manager answers at 127.0.0.1:1"),
        (manager[1], nats_url, ["--port", port], f"can't listen on 127.0.0.1:{port}"),
    ):
        with pytest.raises(Fault, match=says):
            async with running_gateway(address, nats, "--connect-timeout-s", "0.3", *flags):
                pass
