"""One suite for every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.postgres import PostgresServer, temporary_postgres

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Call,
    CallState,
    Edge,
    Failure,
    Provenance,
    Ref,
    Session,
    SessionState,
    Timings,
    Usage,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import PostgresStore, engine_of, opened
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

S = "s00-0000000000000001"
SESSION = Session(S, "default", "label", SessionState.OPEN, 1_000, 9_000, trace=(("traceparent", "00-ab"),))
CALL = Call(
    S, "c-1", 1, 1, "f", "m", (Edge("in", "a"), Edge("in2", "a")), (Edge("out", "b"),), b"\0spec", 1_000
)
GIVEN = Variable(S, "a", "in", VariableState.READY, size_bytes=3, ready_ms=1_000)
MADE = Variable(S, "b", "out", producer_call_id="c-1")
FAILURE = Failure("engine_error", "it \u2028 broke", S, "c-1", "b", True, "x", "c-9")


@pytest.fixture(params=["memory", "postgres"])
async def any_store(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Store]:
    """Each of the stores, empty."""
    if request.param == "memory":
        yield MemoryStore()
        return
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        yield store


async def fill(store: Store, value: bytes = b"a\0b") -> None:
    """A session with a call that reads a given variable."""
    await store.insert_session(SESSION)
    await store.insert_calls(S, [CALL], [MADE, GIVEN], [Value("a", value)])


def ended(store_call: Call = CALL) -> Changes:
    """The call is done."""
    return Changes(
        calls=(
            replace(
                store_call,
                state=CallState.DONE,
                engine_id="e",
                attempt=1,
                usage=Usage(1, 2, 3),
                timings=Timings(0.5, 1.5, 2.5, 3.5, 4.5, 6, 0xFFFFFFFF),
                provenance=Provenance("e", "m", "float32", "sim", "1.2", "none", 2, True, "0.1"),
                ready_ms=2_000,
                dispatched_ms=3_000,
                ended_ms=4_000,
            ),
        ),
        variables=(replace(MADE, state=VariableState.READY, size_bytes=4, ready_ms=4_000),),
        attempts=(Attempt(Ref(S, "c-1", 1), "e", AttemptState.DONE, 3_000, 4_000),),
        values=(Value("b", b"made"),),
    )


async def test_what_is_stored_comes_back(any_store: Store) -> None:
    await fill(any_store)
    running = Attempt(Ref(S, "c-1", 1), "e", AttemptState.RUNNING, 3_000)
    await any_store.commit(S, Changes(attempts=(running,)))
    (record,) = await any_store.load_live(0)
    assert record.session == SESSION
    assert record.calls == (CALL,)
    assert record.variables == (GIVEN, MADE)
    assert record.attempts == (running,)
    assert await any_store.read_value(S, "a") == b"a\0b"
    assert await any_store.read_value(S, "b") is None
    assert await any_store.read_value(S, "nowhere") is None


async def test_a_commit_brings_everything_up_to_date(any_store: Store) -> None:
    await fill(any_store)
    await any_store.commit(S, ended())
    record = await any_store.load_session("default", S)
    assert record is not None
    assert record.calls == (replace(ended().calls[0], spec=b""),)
    assert record.variables[1] == ended().variables[0]
    assert await any_store.read_value(S, "b") == b"made"


async def test_every_write_may_be_repeated(any_store: Store) -> None:
    for _ in range(2):
        await fill(any_store)
    for _ in range(2):
        await any_store.commit(S, ended())
    (record,) = await any_store.load_live(0)
    assert len(record.calls) == 1
    assert record.calls[0].state is CallState.DONE
    assert record.attempts == ()


async def test_what_has_ended_never_changes(any_store: Store) -> None:
    await fill(any_store)
    closed = replace(SESSION, state=SessionState.CLOSED, ended_ms=5_000)
    await any_store.commit(S, replace(ended(), session=closed))
    again = Changes(
        session=replace(SESSION, state=SessionState.EXPIRED, ended_ms=6_000),
        calls=(replace(CALL, state=CallState.FAILED, failure=FAILURE, ended_ms=6_000),),
        variables=(replace(MADE, state=VariableState.FAILED, failure=FAILURE),),
        values=(Value("b", b"other"),),
    )
    await any_store.commit(S, again)
    record = await any_store.load_session("default", S)
    assert record is not None
    assert record.session == closed
    assert record.calls[0].state is CallState.DONE
    assert record.variables[1].state is VariableState.READY
    assert await any_store.read_value(S, "b") == b"made"


async def test_failures_come_back_whole(any_store: Store) -> None:
    await fill(any_store)
    failed = replace(CALL, state=CallState.FAILED, failure=FAILURE, ended_ms=4_000)
    lost = replace(MADE, state=VariableState.FAILED, failure=FAILURE)
    await any_store.commit(S, Changes(calls=(failed,), variables=(lost,)))
    record = await any_store.load_session("default", S)
    assert record is not None
    assert record.calls[0].failure == FAILURE
    assert record.variables[1].failure == FAILURE


async def test_a_refused_batch_is_undone(any_store: Store) -> None:
    await fill(any_store)
    await any_store.remove_calls(S, [CALL], [MADE, GIVEN])
    (record,) = await any_store.load_live(0)
    assert (record.calls, record.variables) == ((), ())
    assert await any_store.read_value(S, "a") is None


async def test_a_start_finds_open_lately_ended_and_unfinished_sessions(any_store: Store) -> None:
    def session(number: int, ended_ms: int) -> Session:
        state = SessionState.CLOSED if ended_ms else SessionState.OPEN
        return replace(SESSION, id=f"s00-{number:016x}", created_ms=number, state=state, ended_ms=ended_ms)

    for number, ended_ms in ((4, 0), (3, 5_000), (2, 2_000), (1, 2_000)):
        await any_store.insert_session(session(number, ended_ms))
    orphan = replace(CALL, session_id=f"s00-{1:016x}")
    await any_store.insert_calls(orphan.session_id, [orphan], [], [])
    found = await any_store.load_live(3_000)
    assert [record.session.created_ms for record in found] == [1, 3, 4]
    assert found[0].calls[0].spec == CALL.spec


async def test_a_session_is_its_tenants_alone(any_store: Store) -> None:
    await fill(any_store)
    assert await any_store.load_session("other", S) is None
    assert await any_store.load_session("default", "s00-0000000000000009") is None


async def test_a_large_value_is_kept_exactly(any_store: Store) -> None:
    value = "漢\0😀".encode() * 700_000
    await fill(any_store, value)
    assert await any_store.read_value(S, "a") == value


async def test_ended_sessions_are_purged_once(any_store: Store) -> None:
    for number in (1, 2, 3):
        closed = replace(SESSION, id=f"s00-{number:016x}", state=SessionState.CLOSED, ended_ms=number * 1_000)
        await any_store.insert_session(closed)
    await any_store.insert_session(replace(SESSION, id="s00-000000000000000f"))
    found = await any_store.unpurged(3_000, 10)
    assert [session_id[-1] for _, session_id in found] == ["1", "2"]
    await any_store.mark_purged([found[0][1]])
    assert len(await any_store.unpurged(3_000, 10)) == 1


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_conflicts_and_broken_connections_pass(
    postgres: PostgresServer, database_url: str, isolation: str
) -> None:
    await schema.migrate(database_url, 10)
    name = database_url.rpartition("/test_")[2].partition("?")[0]
    postgres.run(f"alter database test_{name} set default_transaction_isolation = '{isolation}'")
    # Long, because the machine may be busy: what is tried is that conflicts pass, not how fast.
    async with opened(database_url, 45) as store:
        await store.insert_session(SESSION)
        killer = asyncio.create_task(_break_connections(database_url))

        async def write(number: int) -> None:
            mine = replace(CALL, id=f"c-{number}", number=number)
            out = replace(MADE, id=f"b{number}")
            await store.insert_calls(S, [mine], [out], [])
            done = replace(mine, state=CallState.DONE, ended_ms=1)
            ready = replace(out, state=VariableState.READY)
            await store.commit(S, Changes(calls=(done,), variables=(ready,), values=(Value(out.id, b"x"),)))

        try:
            await asyncio.gather(*(write(number) for number in range(1, 201)))
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        record = await store.load_session("default", S)
    assert record is not None
    assert [call.state for call in record.calls] == [CallState.DONE] * 200


async def _break_connections(url: str) -> None:
    engine = engine_of(url)
    query = text(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1"
    )
    try:
        while True:
            async with engine.connect() as connection:
                await connection.execute(query)
            await asyncio.sleep(0.1)
    finally:
        await engine.dispose()


async def test_a_store_that_is_away_says_so_and_works_when_it_is_back() -> None:
    with temporary_postgres() as server:
        url = server.new_database()
        await schema.migrate(url, 10)
        async with opened(url, 0.5) as store:
            await store.insert_session(SESSION)
            await asyncio.to_thread(server.stop)
            with pytest.raises(Fault) as refused:
                await store.insert_session(replace(SESSION, id="s00-0000000000000002"))
            assert refused.value.kind is errors.UNAVAILABLE
            assert refused.value.retry_after_ms > 0
            server.start()
            await store.insert_session(replace(SESSION, id="s00-0000000000000003"))
            assert len(await store.load_live(0)) == 2


async def test_what_does_not_pass_is_raised_at_once(database_url: str) -> None:
    engine: AsyncEngine = engine_of(database_url)
    with pytest.raises(Exception, match="does not exist"):
        await PostgresStore(engine, 30).insert_session(SESSION)
    await engine.dispose()
