"""A service that is told to stop before it serves stops at once, whatever it waits for."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import pytest
from tests.support.manager import eventually, serving
from tests.support.nats import free_port
from tests.support.postgres import temporary_postgres

from parrot_cli.child import tethered
from parrot_manager.store import schema
from parrot_manager.store.memory import MemoryStore
from parrot_runtime.values.bus import connected

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

AT_ONCE_S: Final = 60.0
"""Generous for a loaded machine; each would wait for ten minutes."""
PATIENT: Final = ("--connect-timeout-s", "600")


@dataclass(slots=True)
class Places:
    """Where the peers are; nobody answers at those of a stack that has none."""

    postgres: str
    nats: str
    manager: str


def nowhere() -> Places:
    return Places(
        f"postgresql://u@127.0.0.1:{free_port()}/d",
        f"nats://127.0.0.1:{free_port()}",
        f"127.0.0.1:{free_port()}",
    )


def manager_of(places: Places) -> list[str]:
    flags = ["--postgres-url", places.postgres, "--nats-url", places.nats]
    return ["parrot_manager", *flags, "--listen", places.manager]


def gateway_of(places: Places) -> list[str]:
    return ["parrot_gateway", "--manager-address", places.manager, "--nats-url", places.nats, "--port", "0"]


def engine_of(places: Places) -> list[str]:
    flags = ["--manager-address", places.manager, "--nats-url", places.nats]
    return ["parrot_engine", *flags, "--backend", "sim", "--engine-id", "e-1"]


@asynccontextmanager
async def started(command: list[str]) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A service that has begun to start, and where its monitor is."""
    monitor = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-m", *command, *PATIENT, "--metrics-address", monitor], signal.SIGKILL),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process, f"http://{monitor}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def stopped_while(command: list[str], reason: str) -> tuple[int, str]:
    """Told to stop while it gives this reason for not being ready: its exit status, and what it logged."""
    async with started(command) as (process, url), httpx.AsyncClient(base_url=url, timeout=5) as http:

        async def waits() -> bool:
            assert process.returncode is None, "it has ended"
            try:
                return reason in (await http.get("/readyz")).text
            except httpx.TransportError:
                return False

        await eventually(waits, within_s=90)
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), AT_ONCE_S)
    return process.returncode or 0, said.decode()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (manager_of, "Postgres was not found fit yet"),
        (gateway_of, "no manager answers yet"),
        (engine_of, "NATS is not connected yet"),
    ],
)
async def test_a_start_without_any_peer_is_given_up(
    command: Callable[[Places], list[str]], reason: str
) -> None:
    status, said = await stopped_while(command(nowhere()), reason)
    assert status == 0, said
    assert "Traceback" not in said


async def test_a_manager_that_waits_for_its_migration_or_for_nats_gives_up() -> None:
    with temporary_postgres() as server:
        places = nowhere()
        places.postgres = server.new_database()
        status, said = await stopped_while(manager_of(places), "Postgres was not found fit yet")
        assert status == 0, said
        await schema.migrate(places.postgres, 10)
        status, said = await stopped_while(manager_of(places), "NATS is not connected")
    assert status == 0, said
    assert "Traceback" not in said


async def test_who_finds_managers_but_no_nats_or_the_other_way_round_gives_up(nats_url: str) -> None:
    async with connected(nats_url, "manager", 5) as bus, serving(MemoryStore(), bus) as manager:
        places = nowhere()
        places.manager = manager.address
        status, said = await stopped_while(gateway_of(places), "NATS is not connected yet")
        assert status == 0, said
        places = nowhere()
        places.nats = nats_url
        status, said = await stopped_while(engine_of(places), "no manager answers yet")
        assert status == 0, said
