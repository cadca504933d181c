"""One suite for every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.support.manager import eventually
from tests.support.postgres import PostgresServer, temporary_postgres
from tests.support.roles import migrated

from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.commands import Changes
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import (
    Attempt,
    AttemptState,
    Batch,
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
from parrot_manager.store.base import SessionRecord, Store
from parrot_manager.store.leases import Member
from parrot_manager.store.memory import MemoryStore
from parrot_manager.store.postgres import ISOLATION, engine_of, opened
from parrot_manager.store.retry import retrying
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

S = "s00-0000000000000001"
ME = Member("m-1", "first", "here:1")
SESSION = Session(
    S,
    "default",
    "label",
    SessionState.OPEN,
    1_000,
    9_000,
    trace=(("traceparent", "00-ab"),),
    criteria=Criteria(ObjectiveKind.DEADLINE, 5_000),
    lazy=True,
    ends_with_calls=True,
    idempotency_key="key \u2028",
    body_digest=b"\0digest",
)
CALL = Call(
    S,
    "c-1",
    1,
    1,
    "f",
    "m",
    (Edge("in", "a"), Edge("in2", "a")),
    (Edge("out", "b"),),
    b"\0spec",
    1_000,
)
GIVEN = Variable(
    S,
    "a",
    "in",
    VariableState.READY,
    size_bytes=3,
    ready_ms=1_000,
    value_digest=b"\0d",
    producer_block_id="b-7",
    finish_reason="stop_text",
)
MADE = Variable(S, "b", "out", producer_call_id="c-1", criteria=Criteria(ObjectiveKind.TTFT))
BLOCK = Block(S, "b-7", 7, 7, "each", "map", (Edge("list", "a"),), (Edge("all", "b"),), b"\0block", 1_000)
BATCH = Batch("again", b"\0digest", ("c-1",))
FAILURE = Failure("engine_error", "it \u2028 broke", S, "c-1", "b", True, "x", "c-9")


@pytest.fixture(params=["memory", "postgres"])
async def any_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Each of the stores, empty; the one in Postgres under a manager's own role."""
    if request.param == "memory":
        made = MemoryStore()
        await claim(made)
        yield made
        return
    given = request.getfixturevalue
    async with opened(await migrated(given("postgres"), given("database_url")), 5) as store:
        await claim(store)
        yield store


async def claim(store: Store) -> None:
    """Takes two shards, so that their epoch is 1."""
    await store.leases.join(ME, range(2), 60)
    assert await store.leases.claim(ME, range(2)) == {0: 1, 1: 1}


def batch(value: bytes = b"a\0b") -> CallsAccepted:
    """A call that reads a given variable."""
    return CallsAccepted(S, (CALL,), (MADE, GIVEN), (Value("a", value),), BATCH, blocks=(BLOCK,))


async def fill(store: Store, value: bytes = b"a\0b") -> None:
    """A session with that batch."""
    await store.insert_session(SESSION, 1)
    await store.insert_calls(batch(value), 1)


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
                losses=2,
                placement="e: it holds \u2028 all",
            ),
        ),
        variables=(
            replace(
                MADE,
                state=VariableState.READY,
                size_bytes=4,
                ready_ms=4_000,
                criteria=Criteria(ObjectiveKind.LATENCY),
                value_digest=b"\xff",
            ),
        ),
        attempts=(Attempt(Ref(S, "c-1", 1), "e", AttemptState.DONE, 3_000, 4_000, "least loaded"),),
        values=(Value("b", b"made"),),
    )


async def test_what_is_stored_comes_back(any_store: Store) -> None:
    await fill(any_store)
    (record,) = await any_store.load_live([0], 0)
    assert record == SessionRecord(SESSION, (CALL,), (GIVEN, MADE), (), (BATCH,), (BLOCK,))
    assert await any_store.load_live([1], 0) == []
    assert await any_store.read_value(S, "a") == b"a\0b"
    assert await any_store.read_value(S, "b") is None
    assert await any_store.read_value(S, "nowhere") is None
    assert await any_store.read_values(S, ["b", "a", "nowhere"]) == {"a": b"a\0b"}


async def test_a_session_is_opened_with_its_first_batch_once(any_store: Store) -> None:
    assert await any_store.insert_session_with_calls(SESSION, batch(), 1)
    whole = SessionRecord(SESSION, (CALL,), (GIVEN, MADE), (), (BATCH,), (BLOCK,))
    other = replace(batch(b"other"), calls=(replace(CALL, id="c-2", number=2),), batch=None)
    for again in (batch(), other):
        assert not await any_store.insert_session_with_calls(SESSION, again, 1)
        assert await any_store.load_live([0], 0) == [whole]
    await any_store.insert_calls(batch(), 1)
    assert await any_store.load_live([0], 0) == [whole]
    assert await any_store.read_value(S, "a") == b"a\0b"


async def test_a_session_that_is_there_takes_no_batch_as_its_first(any_store: Store) -> None:
    await any_store.insert_session(SESSION, 1)
    assert not await any_store.insert_session_with_calls(SESSION, batch(), 1)
    assert await any_store.load_live([0], 0) == [SessionRecord(SESSION)]


async def test_who_lost_the_shard_opens_no_session_with_a_batch(any_store: Store) -> None:
    with pytest.raises(Fault) as refused:
        await any_store.insert_session_with_calls(SESSION, batch(), 2)
    assert refused.value.kind is errors.WRONG_MANAGER
    assert await any_store.load_live([0], 0) == []


async def test_of_a_session_with_a_batch_that_is_undone_the_session_stays(any_store: Store) -> None:
    await any_store.remove_calls(batch(), 1)
    assert await any_store.load_live([0], 0) == []
    await any_store.insert_session_with_calls(SESSION, batch(), 1)
    for _ in range(2):
        await any_store.remove_calls(batch(), 1)
    assert await any_store.load_live([0], 0) == [SessionRecord(SESSION)]


async def test_unfinished_calls_come_with_their_last_attempts(any_store: Store) -> None:
    await fill(any_store)
    first = Attempt(Ref(S, "c-1", 1), "e", AttemptState.RUNNING, 3_000, reason="least loaded")
    await any_store.commit(S, Changes(calls=(replace(CALL, attempt=1),), attempts=(first,)), 1)
    assert (await any_store.load_live([0], 0))[0].attempts == (first,)
    lost = replace(first, state=AttemptState.LOST, ended_ms=3_500)
    await any_store.commit(S, Changes(attempts=(lost,)), 1)
    assert (await any_store.load_live([0], 0))[0].attempts == (lost,)
    second = Attempt(Ref(S, "c-1", 2), "f", AttemptState.RUNNING, 4_000)
    await any_store.commit(S, Changes(calls=(replace(CALL, attempt=2),), attempts=(second,)), 1)
    assert (await any_store.load_live([0], 0))[0].attempts == (second,)
    await any_store.commit(S, ended(replace(CALL, attempt=2)), 1)
    assert (await any_store.load_live([0], 0))[0].attempts == ()


async def test_a_block_unfolds_in_one_write(any_store: Store) -> None:
    await fill(any_store)
    instance = replace(CALL, id="c-8", number=8, block_id="b-7", outputs=(Edge("out", "b-7.0"),))
    item = Variable(S, "b-7.item.0", "item", VariableState.READY, size_bytes=4, producer_block_id="b-7")
    made = Variable(S, "b-7.0", "out", producer_call_id="c-8")
    unfolded = replace(BLOCK, state=BlockState.RUNNING, count=1, unfolded_ms=2_000)
    queued = replace(instance, state=CallState.READY, ready_ms=2_000)
    for _ in range(2):
        await any_store.commit(
            S,
            Changes(
                calls=(queued,),
                values=(Value(item.id, b"item"),),
                new_calls=(instance,),
                new_variables=(item, made),
                blocks=(unfolded,),
            ),
            1,
        )
    (record,) = await any_store.load_live([0], 0)
    # An instance's spec is its block's.
    assert record.calls == (CALL, replace(queued, spec=b""))
    assert record.variables == (GIVEN, MADE, made, item)
    assert record.blocks == (unfolded,)
    assert await any_store.read_value(S, item.id) == b"item"
    gone = replace(unfolded, state=BlockState.FAILED, failure=FAILURE, ended_ms=3_000)
    await any_store.commit(S, Changes(blocks=(gone,)), 1)
    await any_store.commit(S, Changes(blocks=(unfolded,)), 1)
    (record,) = await any_store.load_live([0], 0)
    assert record.blocks == (gone,)


async def test_a_commit_brings_everything_up_to_date(any_store: Store) -> None:
    await fill(any_store)
    await any_store.commit(S, ended(), 1)
    record = await any_store.load_session("default", S)
    assert record is not None
    assert record.calls == (replace(ended().calls[0], spec=b""),)
    assert record.variables[1] == ended().variables[0]
    assert await any_store.read_value(S, "b") == b"made"


async def test_every_write_may_be_repeated(any_store: Store) -> None:
    for _ in range(2):
        await fill(any_store)
    for _ in range(2):
        await any_store.commit(S, ended(), 1)
    (record,) = await any_store.load_live([0], 0)
    assert len(record.calls) == 1
    assert record.calls[0].state is CallState.DONE
    assert record.attempts == ()


async def test_what_has_ended_never_changes(any_store: Store) -> None:
    await fill(any_store)
    closed = replace(SESSION, state=SessionState.CLOSED, ended_ms=5_000)
    await any_store.commit(S, replace(ended(), session=closed), 1)
    again = Changes(
        session=replace(SESSION, state=SessionState.EXPIRED, ended_ms=6_000),
        calls=(replace(CALL, state=CallState.FAILED, failure=FAILURE, ended_ms=6_000),),
        variables=(replace(MADE, state=VariableState.FAILED, failure=FAILURE),),
        values=(Value("b", b"other"),),
    )
    await any_store.commit(S, again, 1)
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
    await any_store.commit(S, Changes(calls=(failed,), variables=(lost,)), 1)
    record = await any_store.load_session("default", S)
    assert record is not None
    assert record.calls[0].failure == FAILURE
    assert record.variables[1].failure == FAILURE


async def test_a_refused_batch_is_undone(any_store: Store) -> None:
    await fill(any_store)
    await any_store.remove_calls(batch(), 1)
    (record,) = await any_store.load_live([0], 0)
    assert (record.calls, record.variables, record.batches, record.blocks) == ((), (), (), ())
    assert await any_store.read_value(S, "a") is None


async def test_a_start_finds_open_lately_ended_and_unfinished_sessions(any_store: Store) -> None:
    def session(number: int, ended_ms: int) -> Session:
        state = SessionState.CLOSED if ended_ms else SessionState.OPEN
        return replace(SESSION, id=f"s00-{number:016x}", created_ms=number, state=state, ended_ms=ended_ms)

    for number, ended_ms in ((5, 5_000), (4, 0), (3, 5_000), (2, 2_000), (1, 2_000)):
        await any_store.insert_session(session(number, ended_ms), 1)
    # The bus holds nothing any more of which it could be told.
    await any_store.mark_purged(0, [session(5, 5_000).id], 1)
    orphan = replace(CALL, session_id=f"s00-{1:016x}")
    await any_store.insert_calls(CallsAccepted(orphan.session_id, (orphan,), (), ()), 1)
    await any_store.insert_session(replace(SESSION, id="s01-0000000000000001"), 1)
    found = await any_store.load_live([0], 3_000)
    assert [record.session.created_ms for record in found] == [1, 3, 4]
    assert found[0].calls[0].spec == CALL.spec


async def test_a_session_is_its_tenants_alone(any_store: Store) -> None:
    await fill(any_store)
    assert await any_store.load_session("other", S) is None
    assert await any_store.read_session(S) == SESSION
    assert await any_store.read_session("s00-0000000000000009") is None
    assert await any_store.load_session("default", "s00-0000000000000009") is None


async def test_a_large_value_is_kept_exactly(any_store: Store) -> None:
    value = "漢\0😀".encode() * 700_000
    await fill(any_store, value)
    assert await any_store.read_value(S, "a") == value


async def test_ended_sessions_are_purged_once_and_then_deleted(any_store: Store) -> None:
    for number in (1, 2, 3):
        closed = replace(SESSION, id=f"s00-{number:016x}", state=SessionState.CLOSED, ended_ms=number * 1_000)
        await any_store.insert_session(closed, 1)
    await any_store.insert_calls(batch(), 1)
    await any_store.commit(S, ended(), 1)
    for other in ("s00-000000000000000f", "s01-0000000000000001"):
        await any_store.insert_session(replace(SESSION, id=other), 1)
    found = await any_store.unpurged(0, 3_000, 10)
    assert [session_id[-1] for _, session_id in found] == ["1", "2"]
    await any_store.mark_purged(0, [found[0][1]], 1)
    assert len(await any_store.unpurged(0, 3_000, 10)) == 1
    assert await any_store.delete_ended(0, 3_000, 10, 1) == 1
    assert await any_store.delete_ended(0, 3_000, 10, 1) == 0
    assert await any_store.load_session("default", found[0][1]) is None
    assert await any_store.read_value(S, "a") is None
    assert await any_store.load_session("default", found[1][1]) is not None


async def test_a_session_is_deleted_with_all_it_holds_and_nothing_else_is(any_store: Store) -> None:
    await fill(any_store)
    await any_store.commit(S, ended(), 1)
    other = replace(SESSION, id="s00-0000000000000002")
    await any_store.insert_session(other, 1)

    for _ in range(2):
        await any_store.delete_session("default", S, 1)

    assert await any_store.load_session("default", S) is None
    assert await any_store.read_values(S, ["a", "b"]) == {}
    (record,) = await any_store.load_live([0], 0)
    assert record.session == other


async def test_a_shard_that_changed_hands_is_not_written_by_the_one_before(any_store: Store) -> None:
    await fill(any_store)
    old = replace(SESSION, id="s00-0000000000000009", state=SessionState.CLOSED, ended_ms=2_000)
    await any_store.insert_session(old, 1)
    await any_store.mark_purged(0, [old.id], 1)
    await any_store.leases.leave(ME)
    heir = Member("m-2", "second", "there:2")
    await any_store.leases.join(heir, range(2), 60)
    assert await any_store.leases.claim(heir, [0]) == {0: 2}
    other = replace(SESSION, id="s00-0000000000000002")
    for write in (
        any_store.insert_session(other, 1),
        any_store.insert_calls(CallsAccepted(S, (replace(CALL, id="c-2", number=2),), (), ()), 1),
        any_store.remove_calls(batch(), 1),
        any_store.commit(S, ended(), 1),
        any_store.mark_purged(0, [S], 1),
        any_store.delete_ended(0, 9_999, 10, 1),
        any_store.delete_session("default", S, 1),
        any_store.commit(S, ended(), 3),
    ):
        with pytest.raises(Fault) as refused:
            await write
        assert refused.value.kind is errors.WRONG_MANAGER
    (record,) = await any_store.load_live([0], 0)
    assert (record.session, record.calls, record.variables) == (SESSION, (CALL,), (GIVEN, MADE))
    await any_store.commit(S, ended(), 2)
    assert await any_store.delete_ended(0, 9_999, 10, 2) == 1


@pytest.mark.parametrize(
    ("isolation", "level"),
    [
        ("serializable", ISOLATION),
        ("repeatable read", ISOLATION),
        ("read committed", "SERIALIZABLE"),
        ("read committed", "REPEATABLE READ"),
    ],
)
async def test_conflicts_and_broken_connections_pass(
    postgres: PostgresServer, database_url: str, isolation: str, level: str
) -> None:
    await schema.migrate(database_url, 10)
    name = database_url.rpartition("/test_")[2].partition("?")[0]
    postgres.run(f"alter database test_{name} set default_transaction_isolation = '{isolation}'")
    # Long, because the machine may be busy: what is tried is that conflicts pass, not how fast.
    async with opened(database_url, 45, level) as store:
        await claim(store)
        await store.insert_session(SESSION, 1)
        killer = asyncio.create_task(_break_connections(database_url))

        async def write(number: int) -> None:
            mine = replace(CALL, id=f"c-{number}", number=number)
            out = replace(MADE, id=f"b{number}")
            await store.insert_calls(CallsAccepted(S, (mine,), (out,), ()), 1)
            done = replace(mine, state=CallState.DONE, ended_ms=1)
            ready = replace(out, state=VariableState.READY)
            changes = Changes(calls=(done,), variables=(ready,), values=(Value(out.id, b"x"),))
            await store.commit(S, changes, 1)

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
        async with opened(url, 3) as store:
            await claim(store)
            await store.insert_session(SESSION, 1)
            await asyncio.to_thread(server.stop)
            with pytest.raises(Fault) as refused:
                await store.insert_session(replace(SESSION, id="s00-0000000000000002"), 1)
            assert refused.value.kind is errors.UNAVAILABLE
            assert refused.value.retry_after_ms > 0
            server.start()
            await store.insert_session(replace(SESSION, id="s00-0000000000000003"), 1)
            assert len(await store.load_live([0], 0)) == 2


async def test_a_transaction_that_stood_still_for_too_long_is_done_anew(database_url: str) -> None:
    engine, watching = engine_of(database_url), engine_of(database_url)
    tries: list[int] = []

    async def transact() -> None:
        async with engine.begin() as connection:
            await connection.execute(text("set local idle_in_transaction_session_timeout = 50"))
            tries.append((await connection.execute(text("select pg_backend_pid()"))).scalar_one())
            if len(tries) == 1:
                await eventually(ended)
            await connection.execute(text("select 1"))

    async def ended() -> bool:
        async with watching.connect() as connection:
            query = text("select count(*) from pg_stat_activity where pid = :pid")
            return bool((await connection.execute(query, {"pid": tries[0]})).scalar_one() == 0)

    await retrying(transact, "transact", 30)
    assert len(tries) == 2
    for each in (engine, watching):
        await each.dispose()


async def test_what_does_not_pass_is_raised_at_once(database_url: str) -> None:
    async with opened(database_url, 30) as store:
        with pytest.raises(Exception, match="does not exist"):
            await store.insert_session(SESSION, 1)
