"""Writes that wait for a tenant's row leave connections to everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.support.manager import eventually
from tests.support.quotas import EVERYTHING, SESSION, A, batch, call, claim, done, taken

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import SessionState
from parrot_manager.core.tenants import TenantLimits
from parrot_manager.store import ledger_statements
from parrot_manager.store.base import Store
from parrot_manager.store.postgres import POOL_SIZE, engine_of
from parrot_manager.store.turns import EACH, Turns

pytestmark = pytest.mark.anyio

IDS = [f"s00-{number:016x}" for number in range(1, 2 * POOL_SIZE)]
OTHERS = "s00-00000000000000ff"
Write = Callable[[Store, str], Coroutine[Any, Any, None]]


@asynccontextmanager
async def held(database_url: str, *tenants: str) -> AsyncIterator[None]:
    """Somebody has the tenants' rows."""
    engine = engine_of(database_url)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            for name in tenants:
                await connection.execute(ledger_statements.LOCK, {"tenant": name})
            yield
    finally:
        await engine.dispose()


async def accept(store: Store, session_id: str) -> None:
    """A second batch."""
    await store.insert_calls(batch(call(2, session_id=session_id)), 1)


async def end(store: Store, session_id: str) -> None:
    """The first call is done."""
    await store.commit(session_id, done(call(1, session_id=session_id)), 1)


async def open_another(store: Store, session_id: str) -> None:
    """A session is opened."""
    await store.insert_session(replace(SESSION, id=session_id.replace("s00-0", "s00-1")), 1)


async def delete(store: Store, session_id: str) -> None:
    """A session is closed and deleted."""
    closed = replace(SESSION, id=session_id, state=SessionState.CLOSED, ended_ms=5_000)
    await end(store, session_id)
    await store.commit(session_id, Changes(session=closed), 1)
    await store.delete_session(A, session_id, 1)


async def lease(store: Store, session_id: str) -> None:
    """A gateway asks for requests."""
    del session_id
    await store.tenants.lease_requests(A, 1, 0)


@pytest.mark.parametrize(
    ("write", "sessions"), [(accept, 1), (end, 1), (open_another, 2), (delete, 0), (lease, 1)]
)
async def test_a_tenant_whose_row_is_held_leaves_its_neighbours_alone(
    store: Store, database_url: str, write: Write, sessions: int
) -> None:
    await claim(store)
    await store.insert_session(replace(SESSION, id=OTHERS, tenant="neighbour"), 1)
    for session_id in IDS:
        await store.insert_session(replace(SESSION, id=session_id), 1)
        await store.insert_calls(batch(call(1, session_id=session_id)), 1)
    await store.tenants.set_limits(A, EVERYTHING)
    async with held(database_url, A):
        waiting = [asyncio.create_task(write(store, session_id)) for session_id in IDS]
        await eventually(lambda: _wait_for_a_row(store))
        async with asyncio.timeout(2):
            for number in range(1, 4):
                await store.insert_calls(batch(call(number, session_id=OTHERS)), 1)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert await store.tenants.recount() == []
    assert (await taken(store)).sessions == len(IDS) * sessions


async def _wait_for_a_row(store: Store) -> bool:
    """Whether some wait for a lock, as many as may."""
    engine = getattr(store, "_engine")  # noqa: B009 - of the store's insides
    async with engine.connect() as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        found = await connection.exec_driver_sql(query)
        return int(found.scalar_one()) >= EACH


async def test_several_tenants_whose_rows_are_held_do_neither(store: Store, database_url: str) -> None:
    await claim(store)
    tenants = [f"tenant-{number}" for number in range(POOL_SIZE)]
    await store.insert_session(replace(SESSION, id=OTHERS, tenant="neighbour"), 1)
    for session_id, name in zip(IDS, tenants, strict=False):
        await store.tenants.set_limits(name, TenantLimits(calls=9))
        await store.insert_session(replace(SESSION, id=session_id, tenant=name), 1)
    async with held(database_url, *tenants):
        waiting = [asyncio.create_task(accept(store, session_id)) for session_id in IDS[:POOL_SIZE]]
        await eventually(lambda: _wait_for_a_row(store))
        async with asyncio.timeout(2):
            await store.insert_calls(batch(call(1, session_id=OTHERS)), 1)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)


async def test_who_lost_its_limits_waits_for_no_turn(store: Store) -> None:
    await claim(store)
    await store.tenants.set_limits(A, EVERYTHING)
    await store.insert_session(SESSION, 1)
    await store.insert_calls(batch(call(1)), 1)
    turns: Turns = getattr(store, "_turns")  # noqa: B009 - of the store's insides
    assert turns.known((SESSION.id,)) == A
    await store.tenants.set_limits(A, None)
    await store.insert_calls(batch(call(2)), 1)
    assert turns.known((SESSION.id,)) == ""
