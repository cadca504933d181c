"""What a gateway tells Prometheus moves when it should, and its readiness is the truth."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.manager import eventually
from tests.support.metrics import Scrape, scraped
from tests.support.nats import free_port, temporary_nats

from parrot_runtime.values.bus import Bus, connected

pytestmark = pytest.mark.anyio


async def new_session(http: httpx.AsyncClient) -> str:
    """A new session's path."""
    answer = await http.post("/v1/sessions")
    assert answer.status_code == 201
    return f"/v1/sessions/{answer.json()['id']}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A gateway, a client of it, and where it is monitored."""

    gateway: RunningGateway
    http: httpx.AsyncClient
    monitor: str

    async def seen(self) -> Scrape:
        """What it says now."""
        return await scraped(self.monitor)

    async def becomes(self, expected: float, name: str, **labels: str) -> None:
        """Returns once a metric has a value."""

        async def look() -> bool:
            return (await self.seen()).value(f"parrot_gateway_{name}", **labels) == expected

        await eventually(look)

    async def readiness(self) -> tuple[int, str]:
        """The monitor's word."""
        async with httpx.AsyncClient(timeout=10) as http:
            answer = await http.get(f"http://{self.monitor}/readyz")
        return answer.status_code, answer.text


@pytest.fixture
async def watched(manager: tuple[FakeManager, str], nats_url: str, bus: Bus) -> AsyncIterator[Watched]:
    """A gateway whose clients are cut soon."""
    monitor = f"127.0.0.1:{free_port()}"
    flags = ["--metrics-address", monitor, "--unread-s", "0.5", "--heartbeat-s", "0.1"]
    async with (
        running_gateway(manager[1], nats_url, *flags) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        yield Watched(gateway, http, monitor)


async def test_requests_are_counted_by_what_is_served_and_not_by_what_is_asked_for(watched: Watched) -> None:
    path = await new_session(watched.http)
    for _ in range(3):
        await watched.http.get(path)
    await watched.http.get("/nowhere/secret")
    await watched.http.request("PROPFIND", "/nowhere")
    route = "/v1/sessions/{session_id}"
    await watched.becomes(3, "requests_total", route=route, method="GET", status="200")
    await watched.becomes(3, "request_seconds_count", route=route)
    await watched.becomes(1, "requests_total", route="unknown", method="GET", status="404")
    await watched.becomes(1, "requests_total", route="unknown", method="other", status="404")
    await watched.becomes(2, "refused_total", type="not_found")
    assert (await watched.seen()).value("parrot_gateway_manager_seconds_count", method="GetSession") == 3


async def test_streams_are_counted_while_they_are_open_and_their_bytes_for_ever(watched: Watched) -> None:
    path = await new_session(watched.http)
    await watched.http.put(f"{path}/variables/v", json={"value": "a text"})
    async with watched.http.stream("GET", f"{path}/events") as response:
        assert response.status_code == 200
        await watched.becomes(1, "streams", kind="session")
    await watched.becomes(0, "streams", kind="session")
    before = (await watched.seen()).value("parrot_gateway_stream_bytes_total")
    stream = await watched.http.get(f"{path}/variables/v/stream")
    assert stream.headers["content-type"].startswith("text/event-stream")
    await watched.becomes(before + len(stream.content), "stream_bytes_total")
    await watched.becomes(0, "streams", kind="variable")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own time-out")
async def test_a_reader_that_takes_nothing_is_cut_and_counted(watched: Watched) -> None:
    path = await new_session(watched.http)
    await watched.http.put(f"{path}/variables/v", json={"value": "lorem ipsum " * 600_000})
    where = urlsplit(watched.gateway.url)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((where.hostname, where.port))
        reader.sendall(f"GET {path}/variables/v/stream HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        await watched.becomes(1, "readers_cut_total")


async def test_the_public_door_has_no_metrics(watched: Watched) -> None:
    assert (await watched.http.get("/metrics")).status_code == 404


async def test_without_a_manager_that_serves_it_is_not_ready(watched: Watched, fake: FakeManager) -> None:
    assert await watched.readiness() == (200, "ready\n")
    assert (await watched.http.get("/readyz")).status_code == 200
    await fake.serves(well=False)
    status, why = await watched.readiness()
    assert status == 503
    assert "it can't reach Postgres" in why
    public = await watched.http.get("/readyz")
    assert public.status_code == 503
    assert "it can't reach Postgres" in public.json()["detail"]
    await fake.serves(well=True)
    assert (await watched.readiness())[0] == 200


async def test_without_the_bus_it_is_not_ready_and_lives(manager: tuple[FakeManager, str]) -> None:
    monitor = f"127.0.0.1:{free_port()}"
    with temporary_nats() as server:
        async with (
            connected(server.url, "manager", 5),
            running_gateway(manager[1], server.url, "--metrics-address", monitor) as gateway,
            httpx.AsyncClient(base_url=gateway.url) as http,
        ):
            watched = Watched(gateway, http, monitor)

            async def ready() -> bool:
                return (await watched.readiness())[0] == 200

            async def unready() -> bool:
                return await watched.readiness() == (503, "the bus (NATS) can't be reached\n")

            await eventually(ready)
            server.kill()
            await eventually(unready)
            assert (await http.get("/healthz")).status_code == 200
            server.start()
            await eventually(ready)


async def test_when_told_to_stop_it_is_not_ready_while_it_finishes(watched: Watched) -> None:
    where = urlsplit(watched.gateway.url)
    with socket.create_connection((where.hostname, where.port)) as slow:
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 9\r\n\r\n"
        slow.sendall(head.encode())

        watched.gateway.stop.set()

        async def stopping() -> bool:
            return await watched.readiness() == (503, "this gateway is stopping\n")

        await eventually(stopping)
