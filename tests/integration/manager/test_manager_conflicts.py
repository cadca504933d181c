"""The database's passing troubles are waited out: none is a verdict on a call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text
from tests.support.fake_engine import FakeEngine, attached, finish
from tests.support.manager import Client, call, serving
from tests.support.postgres import PostgresServer

from parrot_manager.store import schema
from parrot_manager.store.postgres import engine_of, opened
from parrot_manager.store.retry import TROUBLE
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

CALLS = 200
ROUNDS = 10
TERMINATE_EVERY_S = 0.5


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_many_calls_that_end_at_once_feed_one_join_whatever_the_database_does(
    postgres: PostgresServer, database_url: str, bus: Bus, isolation: str
) -> None:
    await schema.migrate(database_url, 10)
    name = database_url.partition("?")[0].rpartition("/")[2]
    postgres.run(f"alter database {name} set default_transaction_isolation = '{isolation}'")
    runs: Counter[str] = Counter()
    gate = _Gate()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        runs[program.name] += 1
        if program.name.startswith("part"):
            await gate.pass_with(CALLS)
        await finish(engine, program)

    async with (
        opened(database_url, 30) as store,
        serving(store, bus, store_deadline_s=30) as manager,
        attached(manager.address, bus, capacity=2 * CALLS, play=play),
        _connections_break(database_url) as broken,
    ):
        await manager.client.engine_ready()
        for number in range(ROUNDS):
            graph = await _round(manager.client, number)
            assert {one.state for one in graph.calls} == {common_pb2.CALL_STATE_DONE}
            assert not any(one.HasField("failure") for one in graph.calls)
            assert runs[f"join {number}"] == 1
    assert len(runs) == ROUNDS * (CALLS + 1)
    assert set(runs.values()) == {1}
    assert broken[0] > 0


async def _round(client: Client, number: int) -> manager_pb2.GetSessionResponse:
    """A session whose many calls feed one, once that has ended."""
    session = await _again(client.open)
    parts = [f"part-{place}" for place in range(CALLS)]
    batch = [call(f"part {number} {part}", [], [part]) for part in parts]
    batch.append(call(f"join {number}", parts, ["all"]))
    await client.submit(session, batch)
    await client.ended(session, "all", within_s=60)
    return await client.session(session)


async def _again(ask: object) -> str:
    while True:
        try:
            return await ask()  # type: ignore[operator,no-any-return]
        except Fault as fault:
            if fault.kind is not errors.UNAVAILABLE:
                raise


class _Gate:
    """Lets through as many as it is told at once, so that they end in the same moment."""

    def __init__(self) -> None:
        self._waiting = 0
        self._open = asyncio.Event()

    async def pass_with(self, count: int) -> None:
        self._waiting += 1
        opened_later = self._open
        if self._waiting == count:
            self._waiting, self._open = 0, asyncio.Event()
            opened_later.set()
        await opened_later.wait()


@asynccontextmanager
async def _connections_break(url: str) -> AsyncIterator[list[int]]:
    """Twice a second a random connection to the database is ended by the server; counts them."""
    engine = engine_of(url, pool_size=1)
    query = text(
        "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1) one"
    )
    broken = [0]

    async def go_on() -> None:
        while True:
            try:
                async with engine.connect() as connection:
                    broken[0] += (await connection.execute(query)).scalar_one()
            except TROUBLE:
                continue
            await asyncio.sleep(TERMINATE_EVERY_S)

    task = asyncio.create_task(go_on())
    try:
        yield broken
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.dispose()
