"""NATS servers of a cluster die, hang and come back under load: for applications it is a pause."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
from tests.chaos.applications import Clients
from tests.chaos.verdict import read_rows, violations
from tests.support.eventually import eventually
from tests.support.managers import GatewayProcess, Service, site
from tests.support.nats_cluster import Member, NatsCluster
from tests.support.postgres import temporary_postgres

from parrot_manager.store import schema
from parrot_proto.common.v1 import common_pb2
from parrot_runtime.values import subjects

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

GOES_ON_WITHIN_S: Final = 60.0
"""An election takes 4 to 9 s, and everything longer on a busy machine."""
APPLICATIONS: Final = 4
DONE: Final = common_pb2.ATTEMPT_STATE_DONE


@dataclass(frozen=True, slots=True)
class System:
    """Every service, each with a process of its own."""

    postgres_url: str
    gateway: GatewayProcess
    services: list[Service]


@pytest.fixture
async def system(cluster: NatsCluster) -> AsyncIterator[System]:
    """Two managers, two engines, a gateway and their database, on the cluster."""
    with temporary_postgres() as postgres:
        url = postgres.new_database()
        await schema.migrate(url, 10)
        async with site(url, cluster.url) as made:
            for name in ("m-1", "m-2"):
                await made.manager(name, "--stream-replicas", "3")
            await made.shared(m_1=8, m_2=8)
            engines = [await made.engine(name, "--sim-step-ms", "10") for name in ("e-1", "e-2")]
            gateway = await made.gateway()
            yield System(url, gateway, [gateway, *made.managers, *engines])


async def test_servers_that_die_or_hang_are_a_pause_and_change_nothing(
    cluster: NatsCluster, system: System
) -> None:
    seed = secrets.randbelow(1 << 31)
    clients = Clients(system.gateway.url, Random(seed), APPLICATIONS)
    running = asyncio.create_task(clients.run())
    try:
        await more_is_read(clients)
        await through(cluster, await cluster.leader_of(subjects.DELTA_STREAM), clients, hangs=False)
        await through(cluster, await cluster.leader_of(subjects.DELTA_STREAM), clients, hangs=True)
        leader = await cluster.leader_of(subjects.FINAL_STREAM)
        follower = next(member for member in cluster.members if member is not leader)
        await through(cluster, follower, clients, hangs=False)
        clients.stop()
        await asyncio.wait_for(running, GOES_ON_WITHIN_S)
    finally:
        running.cancel()
    rows = await read_rows(system.postgres_url, clients.record.accepted)
    assert violations(clients.record, rows) == [], f"seed {seed}"
    # Nobody took anybody for dead, and nobody was started again.
    assert not [row for row in rows.attempts if row["state"] != DONE], f"seed {seed}"
    assert all(service.runs for service in system.services)


async def through(cluster: NatsCluster, member: Member, clients: Clients, *, hangs: bool) -> None:
    """A server dies, or hangs; the applications go on without it, and go on when it is back."""
    member.pause() if hangs else member.kill()
    for stream in subjects.STREAMS:
        await cluster.leader_of(stream, but=member)
    await more_is_read(clients)
    member.resume() if hangs else cluster.start(member)
    await cluster.healthy()
    await more_is_read(clients)


async def more_is_read(clients: Clients) -> None:
    """Returns once applications that are begun from now on have been read to their ends.

    Raises:
        TimeoutError: something hangs.
    """
    known = set(clients.record.accepted)

    def ended() -> bool:
        return len(clients.record.accepted.keys() - known - clients.record.unfinished) >= APPLICATIONS

    await eventually(ended, GOES_ON_WITHIN_S)
