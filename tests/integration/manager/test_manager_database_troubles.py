"""What a database and the way to it can do to a manager, and what it makes of that."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from tests.support.fake_engine import attached
from tests.support.manager import call, serving

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Call, CallState, Session, SessionState, Variable, VariableState
from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.leases import Member
from parrot_manager.store.loads import CALLS_A_SLICE, SESSIONS_A_SLICE, sliced
from parrot_manager.store.postgres import engine_of, opened
from parrot_manager.store.retry import TROUBLE, passes
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

ME = Member("m-1", "only", "here:1")
LEASE_S = 3.0
SESSION = Session("s00-0000000000000001", "default", "", SessionState.OPEN, 1, 9)


@dataclass
class Wire:
    """Passes bytes between the manager and Postgres, unless the connection is dead."""

    socket: str
    latency_s: float = 0.0
    dead: set[int] = field(default_factory=set)
    opened: int = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of the manager's."""
        self.opened += 1
        back_reader, back_writer = await asyncio.open_unix_connection(self.socket)
        name = self.opened
        await asyncio.gather(self._pump(reader, back_writer, name), self._pump(back_reader, writer, name))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: int) -> None:
        try:
            while data := await reader.read(65_536):
                if self.latency_s:
                    await asyncio.sleep(self.latency_s)  # what a slow wire does
                if name not in self.dead:
                    writer.write(data)
        finally:
            writer.close()


@asynccontextmanager
async def wired(url: str) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to a database, and the database's URL over it."""
    direct = make_url(url)
    wire = Wire(f"{direct.query['host']}/.s.PGSQL.5432")
    server = await asyncio.start_server(wire.connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield wire, f"postgresql://{direct.username}@127.0.0.1:{port}/{direct.database}?ssl=disable"
    finally:
        server.close()


async def test_of_several_that_migrate_at_once_one_does_it_and_the_others_find_it_done(
    database_url: str,
) -> None:
    command = [sys.executable, "-m", "parrot_manager", "--migrate", "--postgres-url", database_url]
    together = [
        await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        for _ in range(3)
    ]
    said = [(await process.communicate())[0].decode() for process in together]
    assert [process.returncode for process in together] == [0, 0, 0], said
    await schema.check(database_url, 10)


async def test_a_connection_that_is_dead_without_a_sign_does_not_cost_the_lease(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    async with wired(database_url) as (wire, url), opened(url, 5) as store:
        await store.leases.join(ME, range(2), LEASE_S)
        await store.leases.claim(ME, range(2))
        wire.dead.update(range(1, wire.opened + 1))
        start_s = time.monotonic()
        standing = await store.leases.renew(ME, LEASE_S)
        assert time.monotonic() - start_s < LEASE_S
        assert standing.of(ME.id) == {0: 1, 1: 1}


async def test_a_write_that_hangs_is_done_over_another_connection(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    async with wired(database_url) as (wire, url), opened(url, 30) as store:
        await store.leases.join(ME, range(2), 60)
        await store.leases.claim(ME, range(2))
        await store.insert_session(SESSION, 1)
        wire.dead.update(range(1, wire.opened + 1))
        await store.insert_session(replace(SESSION, id="s00-0000000000000002"), 1)
        assert len(await store.find_live([0], 0)) == 1


async def test_a_shard_that_takes_longer_to_load_than_one_read_may_is_loaded(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    sessions = 4 * SESSIONS_A_SLICE
    async with opened(database_url, 10) as store:
        await store.leases.join(ME, range(2), 60)
        await store.leases.claim(ME, range(2))
        for number in range(sessions):
            await store.insert_session(replace(SESSION, id=f"s00-{number:016x}", created_ms=number), 1)
    async with wired(database_url) as (wire, url), opened(url, 1.5) as store:
        await store.find_live([0], 0)
        wire.latency_s = 0.05
        start_s = time.monotonic()
        records = await store.load_live([0], 0)
        assert time.monotonic() - start_s > 1.5
    assert [record.session.created_ms for record in records] == list(range(sessions))


def test_sessions_are_loaded_in_slices_of_about_as_many_calls() -> None:
    large, most = CALLS_A_SLICE + 1, CALLS_A_SLICE - 1
    sizes = [("a", 1), ("b", most), ("c", 1), ("d", large), ("e", 0), ("f", most), ("g", 2)]
    assert sliced(sizes) == [["a", "b"], ["c"], ["d"], ["e", "f"], ["g"]]
    many = [(str(number), 0) for number in range(SESSIONS_A_SLICE + 1)]
    assert [len(ids) for ids in sliced(many)] == [SESSIONS_A_SLICE, 1]
    assert sliced([]) == []


@pytest.mark.parametrize("state", ["40001", "40P01", "57P01", "08006", "53100", "57014", "25006", "55P03"])
async def test_troubles_that_pass_are_known_by_their_state(database_url: str, state: str) -> None:
    engine = engine_of(database_url)
    raising = f"do $$ begin raise exception 'as the test wants' using errcode = '{state}'; end $$"
    async with engine.connect() as connection:
        with pytest.raises(TROUBLE) as raised:
            await connection.execute(text(raising))
    await engine.dispose()
    assert passes(raised.value)


@pytest.mark.parametrize("state", ["23505", "22P02", "42P01"])
async def test_troubles_that_do_not_pass_are_not_tried_again(database_url: str, state: str) -> None:
    engine = engine_of(database_url)
    raising = f"do $$ begin raise exception 'as the test wants' using errcode = '{state}'; end $$"
    async with engine.connect() as connection:
        with pytest.raises(TROUBLE) as raised:
            await connection.execute(text(raising))
    await engine.dispose()
    assert not passes(raised.value)


async def test_a_large_change_has_longer_than_a_small_one(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    calls = tuple(
        Call(SESSION.id, f"c-{n}", n, n, "f", "m", (), (), b"spec", 1, block_id="") for n in range(1, 3_001)
    )
    made = tuple(Variable(SESSION.id, f"v{n}", "n", producer_call_id=f"c-{n}") for n in range(1, 3_001))
    async with opened(database_url, 0.3) as store:
        await store.leases.join(ME, range(2), 60)
        await store.leases.claim(ME, range(2))
        await store.insert_session(SESSION, 1)
        await store.insert_calls(CallsAccepted(SESSION.id, calls, made, ()), 1)
        ended = tuple(replace(one, state=CallState.CANCELLED, ended_ms=2) for one in calls)
        gone = tuple(replace(one, state=VariableState.CANCELLED) for one in made)
        await store.commit(SESSION.id, Changes(calls=ended, variables=gone), 1)
    async with opened(database_url, 30) as store:
        record = await store.load_session("default", SESSION.id)
    assert record is not None
    assert {one.state for one in record.calls} == {CallState.CANCELLED}


async def test_a_session_that_can_not_be_read_keeps_no_other_from_being_served(
    store: Store, database_url: str, bus: Bus
) -> None:
    async with serving(store, bus) as manager:
        sessions = [await manager.client.open() for _ in range(6)]
        for session in sessions:
            await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
    engine = engine_of(database_url)
    broken = {"state": sessions[0], "kind": sessions[1]}
    async with engine.begin() as connection:
        await connection.execute(text("update calls set state = 99 where session_id = :state"), broken)
        unknown = """update sessions set criteria = '{"kind": 99, "deadline_ms": 0}' where id = :kind"""
        await connection.execute(text(unknown), broken)
    await engine.dispose()
    async with serving(store, bus) as manager, attached(manager.address, bus):
        for session in sessions[2:]:
            assert (await manager.client.ended(session, "b")).value == "text of b"
        with pytest.raises(Fault) as refused:
            await manager.client.submit(sessions[0], [call("two", [], ["c"])])
        assert refused.value.kind is errors.INTERNAL
