"""The manager as a process: what it needs at start, and how it says what is missing."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.manager import Client, eventually
from tests.support.nats import free_port
from tests.support.postgres import temporary_postgres

from parrot_runtime import rpc

pytestmark = pytest.mark.anyio


async def start(*flags: str) -> asyncio.subprocess.Process:
    """`python -m parrot_manager`."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "parrot_manager", *flags, stdout=pipe, stderr=pipe
    )


async def ended(process: asyncio.subprocess.Process, within_s: float = 60) -> tuple[int, str]:
    """Its exit status, and the last line it wrote."""
    _, said = await asyncio.wait_for(process.communicate(), within_s)
    assert process.returncode is not None
    return process.returncode, said.decode().strip().splitlines()[-1]


async def test_without_postgres_it_says_so_and_exits_with_1(nats_url: str) -> None:
    url = f"postgresql://u:secret@127.0.0.1:{free_port()}/db"
    code, line = await ended(
        await start("--postgres-url", url, "--nats-url", nats_url, "--connect-timeout-s", "0.5")
    )
    assert code == 1
    assert line.startswith("parrot-manager: no Postgres can be used at postgresql://u:***@127.0.0.1")
    assert "waited 0.5 s" in line


async def test_without_nats_it_says_so_and_exits_with_1(database_url: str) -> None:
    code, _ = await ended(await start("--postgres-url", database_url, "--migrate"))
    assert code == 0
    url = f"nats://127.0.0.1:{free_port()}"
    code, line = await ended(
        await start("--postgres-url", database_url, "--nats-url", url, "--connect-timeout-s", "0.5")
    )
    assert code == 1
    assert line.startswith(f"parrot-manager: no NATS server answers at {url}")


async def test_without_its_tables_it_waits_for_them_and_says_what_to_run(
    database_url: str, nats_url: str
) -> None:
    flags = ("--postgres-url", database_url, "--nats-url", nats_url, "--connect-timeout-s", "2")
    code, line = await ended(await start(*flags))
    assert code == 1
    assert "waited 2 s: run `parrot-manager --migrate`" in line


async def test_it_serves_until_it_is_told_to_stop_and_a_taken_address_is_told(
    database_url: str, nats_url: str
) -> None:
    flags = ("--postgres-url", database_url, "--nats-url", nats_url, "--listen", f"127.0.0.1:{free_port()}")
    assert (await ended(await start(*flags, "--migrate")))[0] == 0
    process = await start(*flags)
    async with rpc.channel(flags[-1]) as channel:
        await rpc.wait_ready(channel, flags[-1], "manager", 15)
        session = await Client(channel).open()
        code, line = await ended(await start(*flags))
        assert (code, line) == (
            1,
            f"parrot-manager: can't listen on {flags[-1]}: is another manager running there?",
        )

        async def there() -> bool:
            return (await Client(channel).session(session)).session.id == session

        await eventually(there)
    process.send_signal(signal.SIGTERM)
    code, _ = await ended(process)
    assert code == 0


async def test_it_is_ready_while_its_lease_runs(nats_url: str) -> None:
    with temporary_postgres() as server:
        url = server.new_database()
        address = f"127.0.0.1:{free_port()}"
        flags = ("--postgres-url", url, "--nats-url", nats_url, "--listen", address)
        assert (await ended(await start(*flags, "--migrate")))[0] == 0
        process = await start(*flags, "--lease-s", "1", "--renew-s", "0.2", "--store-deadline-s", "0.5")
        async with rpc.channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)

            def says(status: int) -> Callable[[], Awaitable[bool]]:
                async def look() -> bool:
                    try:
                        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
                    except aio.AioRpcError:
                        return False
                    return bool(answer.status == status)

                return look

            await eventually(says(health_pb2.HealthCheckResponse.SERVING), within_s=20)
            await asyncio.to_thread(server.stop)
            await eventually(says(health_pb2.HealthCheckResponse.NOT_SERVING), within_s=20)
            server.start()
            await eventually(says(health_pb2.HealthCheckResponse.SERVING), within_s=20)
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == 0
