"""The services as processes: what they tell is what docs/metrics.md lists, and when they are ready."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from tests.support.manager import eventually
from tests.support.managers import GatewayProcess, ManagerProcess, Service, Site, site
from tests.support.metrics import Scrape, scraped
from tests.support.metrics_list import Listed, listed
from tests.support.nats import NatsServer, free_port, temporary_nats
from tests.support.postgres import PostgresServer

from parrot_manager.store import schema

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

AWAY_WITHIN_S = 30
LEASE = ("--lease-s", "1", "--renew-s", "0.2")


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A bus of the test's own, to be taken away."""
    with temporary_nats() as server:
        yield server


@dataclass
class Monitored:
    """One of each service, and where each is monitored."""

    site: Site
    addresses: dict[str, str] = field(
        default_factory=lambda: {
            name: f"127.0.0.1:{free_port()}" for name in ("manager", "engine", "gateway")
        }
    )
    services: list[Service] = field(default_factory=list)
    url: str = ""

    def flags(self, name: str) -> tuple[str, ...]:
        """What a service is told of its monitor."""
        return ("--metrics-address", self.addresses[name])

    async def readiness(self, name: str) -> tuple[int, str]:
        """What a service says of itself."""
        async with httpx.AsyncClient(timeout=10) as http:
            answer = await http.get(f"http://{self.addresses[name]}/readyz")
        return answer.status_code, answer.text

    async def becomes(self, name: str, status: int, why: str = "") -> None:
        """Returns once a service says so of itself, for this reason; meanwhile it lives."""

        async def look() -> bool:
            try:
                found, text = await self.readiness(name)
            except httpx.TransportError:
                return False
            return found == status and why in text

        await eventually(look, within_s=AWAY_WITHIN_S)
        async with httpx.AsyncClient(timeout=10) as http:
            assert (await http.get(f"http://{self.addresses[name]}/healthz")).status_code == 200


@pytest.fixture
async def monitored(database_url: str, nats: NatsServer) -> AsyncIterator[Monitored]:
    """A site of one manager, one engine and one gateway, all of them ready."""
    await schema.migrate(database_url, 10)
    async with site(database_url, nats.url) as made:
        found = Monitored(made)
        await made.manager("m-1", *LEASE, *found.flags("manager"))
        await made.engine("e-1", *found.flags("engine"))
        found.url = (await made.gateway(*found.flags("gateway"))).url
        for name in found.addresses:
            await found.becomes(name, 200)
        yield found


async def use(url: str) -> None:
    """An application, of which something goes well and something does not."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        wanted = {"kind": "deadline", "deadline_unix_ms": 9_999_999_999_999}
        session = (await http.post("/v1/sessions", json={"criteria": wanted})).json()["id"]
        holes = [{"name": "x", "in_out": "out", "semantic_var_id": "x", "sampling": {"max_tokens": 8}}]
        body = {"prompt": "Say {{x}}", "placeholders": holes, "model": "sim"}
        (await http.post(f"/v1/sessions/{session}/calls", json=body)).raise_for_status()
        stream = await http.get(f"/v1/sessions/{session}/variables/x/stream")
        assert "event: done" in stream.text
        (await http.delete(f"/v1/sessions/{session}")).raise_for_status()
        assert (await http.get("/v1/sessions/s00-0000000000000000")).status_code == 404


def told(found: Scrape) -> dict[str, Listed]:
    """What a service tells, as the list would have it."""
    kinds, labels = found.kinds(), found.labels()
    return {name: Listed(kind, frozenset(labels[name])) for name, kind in kinds.items()}


async def test_what_the_services_tell_is_what_is_listed(monitored: Monitored) -> None:
    await use(monitored.url)
    for name, address in monitored.addresses.items():

        async def ended() -> bool:
            found = await scraped(address)  # noqa: B023 - awaited within its turn
            ends = {"manager": ("sessions_ended", "closed"), "engine": ("programs", "done")}
            if name not in ends:  # noqa: B023
                return True
            metric, outcome = ends[name]  # noqa: B023
            return found.value(f"parrot_{name}_{metric}_total", outcome=outcome) == 1  # noqa: B023

        await eventually(ended)
        assert told(await scraped(address)) == listed(name), name


async def test_without_postgres_manager_and_gateway_are_not_ready_and_live(
    monitored: Monitored, postgres: PostgresServer
) -> None:
    postgres.stop()
    try:
        await monitored.becomes("manager", 503, "its lease has run out: Postgres can't be reached")
        await monitored.becomes("gateway", 503, "it can't reach Postgres")
        async with httpx.AsyncClient(base_url=monitored.url, timeout=10) as http:
            answer = await http.get("/readyz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "it can't reach Postgres" in answer.json()["detail"]
        assert (await scraped(monitored.addresses["manager"])).value("parrot_manager_lease_valid") == 0
        assert (await monitored.readiness("engine"))[0] == 200
    finally:
        postgres.start()
    await monitored.becomes("manager", 200)
    await monitored.becomes("gateway", 200)


async def test_without_nats_manager_and_gateway_are_not_ready_and_live(
    monitored: Monitored, nats: NatsServer
) -> None:
    nats.kill()
    for name in ("manager", "gateway"):
        await monitored.becomes(name, 503, "the bus (NATS) can't be reached")
    assert (await scraped(monitored.addresses["manager"])).value("parrot_bus_connected") == 0
    nats.start()
    for name in ("manager", "gateway"):
        await monitored.becomes(name, 200)
        assert (await scraped(monitored.addresses[name])).value("parrot_bus_reconnects_total") >= 1


async def test_a_manager_that_waits_for_its_peers_lives_and_says_what_it_waits_for(
    database_url: str, postgres: PostgresServer, nats: NatsServer
) -> None:
    await schema.migrate(database_url, 10)
    found, address = Monitored(Site(database_url, nats.url, None)), f"127.0.0.1:{free_port()}"  # type: ignore[arg-type]
    flags = ["--listen", address, "--postgres-url", database_url, "--nats-url", nats.url]
    manager = ManagerProcess(["parrot_manager", *flags, *found.flags("manager")])
    nats.kill()
    await manager.start()
    try:
        await found.becomes("manager", 503, "NATS is not connected, or the first shards are not loaded yet")
        nats.start()
        await found.becomes("manager", 200)
    finally:
        await manager.kill()


async def test_a_gateway_without_managers_lives_and_says_that_it_waits_for_one(nats: NatsServer) -> None:
    found, port = Monitored(Site("", nats.url, None)), free_port()  # type: ignore[arg-type]
    flags = ["--port", str(port), "--manager-address", f"127.0.0.1:{free_port()}", "--nats-url", nats.url]
    gateway = GatewayProcess(["parrot_gateway", *flags, *found.flags("gateway")])
    await gateway.start()
    try:
        await found.becomes("gateway", 503, "no manager answers yet")
    finally:
        await gateway.kill()


@pytest.mark.parametrize("module", ["parrot_manager", "parrot_gateway", "parrot_engine"])
async def test_an_address_that_is_none_ends_a_service_at_once_with_the_reason(module: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--metrics-address", "nonsense"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    last = said.decode().splitlines()[-1]
    assert "--metrics-address: nothing can be served at 'nonsense'" in last
    assert last.endswith("give a free host:port")
