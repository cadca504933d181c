"""Managers die, stop or sleep under load; others go on with their sessions, and nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.manager import call, eventually
from tests.support.managers import Site, site

from parrot_manager.store import schema
from parrot_manager.store.postgres import engine_of
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TAKEN_OVER_WITHIN_S = 5.0
LONG_LEASE_S = 60
AT_ONCE_S = 20.0
"""A busy machine's "at once", and far less than a long lease."""
SESSIONS = 12
CHAIN = 3
RUNNING = common_pb2.CALL_STATE_RUNNING
DONE = common_pb2.CALL_STATE_DONE
READY = common_pb2.VARIABLE_STATE_READY


@asynccontextmanager
async def shared_site(database_url: str, nats_url: str, *flags: str) -> AsyncIterator[Site]:
    """Two managers that share the shards, and an engine."""
    await schema.migrate(database_url, 10)
    async with site(database_url, nats_url) as made:
        await made.manager("m-1", *flags)
        await made.manager("m-2", *flags)
        await made.shared(m_1=8, m_2=8)
        await made.engine("e-1", "--sim-step-ms", "10")
        yield made


@pytest.fixture
async def two(database_url: str, nats_url: str) -> AsyncIterator[Site]:
    """Two managers with the leases they have by default."""
    async with shared_site(database_url, nats_url) as made:
        yield made


@pytest.fixture
async def patient(database_url: str, nats_url: str) -> AsyncIterator[Site]:
    """Two managers that would wait for a dead one's lease longer than any test does."""
    async with shared_site(database_url, nats_url, "--lease-s", str(LONG_LEASE_S)) as made:
        yield made


def chain(tokens: int) -> list[pb.NewCall]:
    """Calls of so many tokens each, one after another."""
    calls = [call(f"link {n}", [f"v{n}"] if n else [], [f"v{n + 1}"]) for n in range(CHAIN)]
    for one in calls:
        one.segments[-1].output.sampling.CopyFrom(
            common_pb2.Sampling(max_tokens=tokens, min_tokens=tokens, temperature=0)
        )
    return calls


async def begin(place: Site, tokens: int) -> list[str]:
    """Sessions on both managers, each with a chain of calls that runs."""
    sessions = [await place.open() for _ in range(SESSIONS)]
    await asyncio.gather(*(place.submit(session, chain(tokens)) for session in sessions))
    for session in sessions:
        await reached(place, session, RUNNING)
    return sessions


async def reached(place: Site, session_id: str, state: int) -> None:
    """Returns once a session's first call has come so far."""

    async def look() -> bool:
        return (await place.session(session_id)).calls[0].state >= state

    await eventually(look, within_s=30)


async def finished(place: Site, session_id: str) -> pb.GetSessionResponse:
    """A session's graph once all its calls have ended."""
    async with asyncio.timeout(60):
        while True:
            graph = await place.session(session_id)
            if all(one.state >= DONE for one in graph.calls):
                return graph
            await asyncio.sleep(0.02)


async def shards_of(place: Site, manager_id: str) -> set[int]:
    """The shards a manager has."""
    (found,) = [one for one in await place.clients["m-2"].managers() if one.id == manager_id]
    return set(found.shards)


async def rows(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """What the database holds of sessions."""
    engine = engine_of(url, pool_size=1)
    found: dict[str, list[tuple[Any, ...]]] = {}
    async with engine.connect() as connection:
        for table in ("sessions", "calls", "variables", "attempts"):
            result = await connection.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2, 3"))  # noqa: S608
            found[table] = [tuple(map(str, row)) for row in result]
    await engine.dispose()
    return found


async def all_stored(url: str) -> None:
    """Returns once every call's and attempt's end is stored: what a manager shows is ahead of that."""
    engine = engine_of(url, pool_size=1)

    async def look() -> bool:
        async with engine.connect() as connection:
            unended = [
                (await connection.execute(text(f"SELECT count(*) FROM {table} WHERE ended_ms = 0"))).scalar()  # noqa: S608
                for table in ("calls", "attempts")
            ]
        return unended == [0, 0]

    await eventually(look, within_s=20)
    await engine.dispose()


def check_once(graph: pb.GetSessionResponse) -> None:
    """Fails unless every call is done, by its first attempt, and every output is there."""
    assert [(one.state, one.attempt) for one in graph.calls] == [(DONE, 1)] * CHAIN
    assert [variable.state for variable in graph.variables] == [READY] * CHAIN


async def served_again(place: Site, sessions: list[str]) -> float:
    """Returns how long it took until all of these are answered for."""
    start_s = time.monotonic()
    await asyncio.gather(*(answered(place, session) for session in sessions))
    return time.monotonic() - start_s


async def answered(place: Site, session_id: str) -> None:
    """Returns once somebody says what there is of a session, be it that there is none."""
    try:
        await place.session(session_id, within_s=LONG_LEASE_S / 2)
    except Fault as fault:
        if fault.kind is not errors.NOT_FOUND:
            raise


async def test_a_killed_managers_sessions_are_taken_over_and_nothing_runs_again(two: Site) -> None:
    sessions = await begin(two, tokens=150)
    lost = await shards_of(two, "m-1")
    orphans = [session for session in sessions if shard_of(session) in lost]
    assert orphans, "none of the sessions fell to the first manager"
    await two.managers[0].kill()
    assert await served_again(two, orphans) < TAKEN_OVER_WITHIN_S
    for session in sessions:
        check_once(await finished(two, session))
    await two.shared(m_2=16)


async def test_a_manager_that_is_told_to_stop_hands_over_at_once(patient: Site) -> None:
    sessions = await begin(patient, tokens=150)
    handed = [session for session in sessions if shard_of(session) in await shards_of(patient, "m-1")]
    stopping = asyncio.create_task(patient.managers[0].stop())
    while not stopping.done():
        # They are answered for all the while, by the one or the other.
        assert await served_again(patient, handed) < AT_ONCE_S
        await asyncio.sleep(0.02)
    assert await stopping == 0
    assert await served_again(patient, handed) < AT_ONCE_S
    for session in sessions:
        check_once(await finished(patient, session))


async def test_a_manager_that_wakes_up_after_its_lease_writes_nothing(two: Site, database_url: str) -> None:
    # Short calls, so that it is paused in the midst of commits.
    sessions = await begin(two, tokens=3)
    two.managers[0].pause()
    for session in sessions:
        graph = await finished(two, session)
        assert {one.state for one in graph.calls} == {DONE}
    await two.shared(m_2=16)
    await all_stored(database_url)
    before = await rows(database_url)
    two.managers[0].resume()
    await two.shared(m_1=8, m_2=8)
    assert await rows(database_url) == before
    # And it is of use again.
    for session in await begin(two, tokens=3):
        check_once(await finished(two, session))


async def test_a_third_manager_gets_its_share_and_a_restarted_one_its_own(patient: Site) -> None:
    sessions = await begin(patient, tokens=150)
    await patient.manager("m-3", "--lease-s", str(LONG_LEASE_S))
    await patient.shared(m_1=6, m_2=5, m_3=5)
    before = await shards_of(patient, "m-1")
    await patient.managers[0].kill()
    await patient.managers[0].start()
    assert await served_again(patient, [f"s{shard:02x}-{0:016x}" for shard in before]) < AT_ONCE_S
    assert await shards_of(patient, "m-1") == before
    for session in sessions:
        check_once(await finished(patient, session))
