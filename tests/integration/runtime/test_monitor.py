"""The monitor of a service: what it serves, from when on, and where it can't."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.eventually import eventually
from tests.support.metrics import collected, scraped
from tests.support.nats import free_port, temporary_nats

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.monitor import Monitor, monitored
from parrot_runtime.values.bus import connected
from parrot_runtime.version import parrot_version

pytestmark = pytest.mark.anyio


@pytest.fixture
def address() -> str:
    """Where the monitor is to be."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
async def monitor(address: str) -> AsyncIterator[Monitor]:
    """A service's monitor before anything else of the service is there."""
    async with monitored(address, "test") as made:
        yield made


@pytest.fixture
async def http(address: str, monitor: Monitor) -> AsyncIterator[httpx.AsyncClient]:
    """Whoever looks at it."""
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
        yield client


async def test_a_service_that_starts_lives_and_is_not_ready(
    http: httpx.AsyncClient, monitor: Monitor
) -> None:
    monitor.starting("the model is not loaded yet")
    assert (await http.get("/healthz")).status_code == 200
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the model is not loaded yet\n")


async def test_readiness_is_asked_for_each_time(http: httpx.AsyncClient, monitor: Monitor) -> None:
    found: list[str] = []

    async def reasons() -> list[str]:
        return found

    monitor.ready_when(reasons)
    assert (await http.get("/readyz")).status_code == 200
    found += ["one is away", "another is, too"]
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "one is away\nanother is, too\n")


async def test_a_bug_in_finding_out_is_an_answer_and_in_the_log(
    http: httpx.AsyncClient, monitor: Monitor, capfd: pytest.CaptureFixture[str]
) -> None:
    async def reasons() -> list[str]:
        raise RuntimeError("as the test wants")

    monitor.ready_when(reasons)
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.text) == (500, "an unexpected error; the service's log has it\n")
    assert "as the test wants" in "".join(capfd.readouterr())
    assert (await http.get("/healthz")).status_code == 200


async def test_the_process_and_the_build_are_among_the_metrics(address: str, monitor: Monitor) -> None:
    found = await scraped(address)
    assert found.value("parrot_build_info", service="test", version=parrot_version()) == 1
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert found.value("process_open_fds") > 0


async def test_whoever_asks_for_openmetrics_gets_them(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/metrics", 405), ("HEAD", "/healthz", 200), ("GET", "/healthz?x=1", 200)],
)
async def test_it_serves_three_pages_to_be_read(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    assert (await http.request(method, path)).status_code == status


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET /" + b"x" * 70_000, b"\r\n\r\n"])
async def test_who_speaks_no_http_harms_nobody(http: httpx.AsyncClient, address: str, sent: bytes) -> None:
    _, port = address.split(":")
    _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(sent)
    writer.close()
    assert (await http.get("/healthz")).status_code == 200


async def test_an_event_loop_that_was_kept_is_seen(address: str, monitor: Monitor) -> None:
    async def late() -> bool:
        found = await scraped(address)
        seen = "parrot_loop_lag_seconds_bucket"
        return found.value(seen, le="+Inf") > found.value(seen, le="0.3")

    assert not await late()
    time.sleep(0.7)  # noqa: ASYNC251 - this is what is to be seen
    async with asyncio.timeout(10):
        while not await late():  # noqa: ASYNC110 - what is looked at can't tell us
            await asyncio.sleep(0)


async def test_a_bus_that_goes_and_comes_back_is_counted(monitor: Monitor) -> None:
    assert collected(monitor.registry).value("parrot_bus_connected") == 0
    with temporary_nats() as server:
        async with connected(server.url, "test", 5) as bus:
            monitor.watch_bus(bus)
            found = collected(monitor.registry)
            assert (found.value("parrot_bus_connected"), found.value("parrot_bus_reconnects_total")) == (1, 0)
            server.kill()
            await eventually(lambda: collected(monitor.registry).value("parrot_bus_connected") == 0)
            server.start()
            await eventually(lambda: collected(monitor.registry).value("parrot_bus_connected") == 1)
            assert collected(monitor.registry).value("parrot_bus_reconnects_total") == 1


@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999", "no.such.host.:1"]
)
async def test_an_address_that_is_none_is_refused_by_its_flag(address: str) -> None:
    with pytest.raises(Fault) as caught:
        async with monitored(address, "test"):
            pass
    assert caught.value.kind is errors.INVALID_REQUEST
    assert f"--metrics-address: nothing can be served at '{address}'" in caught.value.message


async def test_an_address_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Fault, match="give a free host:port"):
            async with monitored(address, "test"):
                pass


@pytest.mark.parametrize("host", ["", "localhost", "[::1]"])
async def test_hosts_are_names_addresses_or_the_loopback(host: str) -> None:
    port = free_port()
    where = host or "127.0.0.1"
    async with monitored(f"{host}:{port}", "test"):
        assert (await scraped(f"{where}:{port}")).value("parrot_build_info") == 1


async def test_without_an_address_nothing_is_served_and_things_are_counted_all_the_same() -> None:
    async with monitored("", "test") as monitor:
        assert collected(monitor.registry).value("parrot_build_info") == 1
