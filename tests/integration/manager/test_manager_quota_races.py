"""Many writers of one tenant at once, over two stores of one database: no count is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest
from sqlalchemy import TextClause, text
from tests.support.quotas import EVERYTHING, SESSION, A, batch, call, claim, done, left, taken

from parrot_manager.core.tenants import Taken, TenantLimits
from parrot_manager.store import ledger_statements, schema
from parrot_manager.store.base import Store
from parrot_manager.store.postgres import engine_of, opened
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

_ENDED: Final = """SELECT (made).* FROM (
    SELECT jsonb_populate_record(kept, jsonb_build_object(
        '{key}', 's00-' || lpad(to_hex(n + 4096), 16, '0'), 'ended_ms', 5)) AS made
    FROM {table} AS kept, generate_series(1, 5000) AS n) AS copies
"""
MANY_ENDED: Final = (
    f"INSERT INTO sessions {_ENDED.format(table='sessions', key='id')}",
    f"INSERT INTO calls {_ENDED.format(table='calls', key='session_id')}",
)
"""Each session and call thousands of times, ended."""


@pytest.fixture
async def two_stores(database_url: str) -> AsyncIterator[list[Store]]:
    """Two managers' stores of one database, each with a shard."""
    await schema.migrate(database_url, 10)
    async with opened(database_url, 30) as one, opened(database_url, 30) as other:
        await claim(one)
        yield [one, other]


async def test_of_many_at_once_over_two_stores_exactly_so_many_pass(two_stores: list[Store]) -> None:
    limits = TenantLimits(calls=10, tokens_per_minute=1_000)
    await two_stores[0].tenants.set_limits(A, limits)
    ids = [f"s{shard:02x}-{number:016x}" for number in range(20) for shard in (0, 1)]
    for session_id, store in zip(ids, itertools.cycle(two_stores)):
        await store.insert_session(replace(SESSION, id=session_id), 1)

    refusals: list[errors.Kind] = []

    async def attempt(store: Store, session_id: str, number: int) -> bool:
        try:
            await store.insert_calls(batch(call(number, session_id=session_id)), 1)
        except Fault as fault:
            refusals.append(fault.kind)
            return False
        return True

    passed = await asyncio.gather(*(attempt(two_stores[n % 2], ids[n % 40], 1 + n // 40) for n in range(100)))
    assert (sum(passed), refusals) == (10, [errors.QUOTA_EXCEEDED] * 90)
    assert await taken(two_stores[1]) == Taken(40, 10, 400, 40)
    assert await left(two_stores[0], 600)
    ending = [(ids[n % 40], 1 + n // 40) for n, ok in enumerate(passed) if ok]
    await asyncio.gather(
        *(
            two_stores[n % 2].commit(session_id, done(call(number, session_id=session_id), 40), 1)
            for n, (session_id, number) in enumerate(ending)
        )
    )
    assert (await taken(two_stores[0])).calls == 0
    assert await two_stores[0].tenants.recount() == []


async def test_a_count_that_is_wrong_is_mended_and_none_beside_it_is_lost(
    two_stores: list[Store], database_url: str
) -> None:
    one, other = two_stores
    await one.tenants.set_limits(A, replace(EVERYTHING, tokens_per_minute=0))
    ids = [f"s00-{number:016x}" for number in range(4)]
    for session_id in ids:
        await one.insert_session(replace(SESSION, id=session_id), 1)

    async def write(session_id: str) -> None:
        for number in range(1, 16):
            made = call(number, session_id=session_id)
            await one.insert_calls(batch(made), 1)
            await one.commit(session_id, done(made), 1)

    writing = asyncio.gather(*map(write, ids))
    engine = engine_of(database_url)
    while not writing.done():
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE tenants SET calls = calls + 7, tokens = tokens + 3"))
        assert await other.tenants.recount() == [A]
        assert await other.tenants.recount() == []
    await engine.dispose()
    await writing
    assert ((await taken(one)).calls, (await taken(one)).tokens) == (0, 0)


async def test_nobody_waits_for_a_count_that_is_right(two_stores: list[Store], database_url: str) -> None:
    one, other = two_stores
    await one.tenants.set_limits(A, EVERYTHING)
    await one.insert_session(SESSION, 1)
    await one.insert_calls(batch(call(1), call(2)), 1)
    engine = engine_of(database_url)
    async with engine.begin() as connection:
        await connection.execute(ledger_statements.LOCK, {"tenant": A})
        assert await asyncio.wait_for(other.tenants.recount(), 10) == []
    await engine.dispose()


@pytest.mark.parametrize("statement", [ledger_statements.MISCOUNTED, ledger_statements.RECOUNT])
async def test_a_count_reads_nothing_of_what_has_ended(
    two_stores: list[Store], database_url: str, statement: TextClause
) -> None:
    store = two_stores[0]
    await store.tenants.set_limits(A, EVERYTHING)
    await store.insert_session(SESSION, 1)
    await store.insert_calls(batch(call(1), call(2), call(3)), 1)
    engine = engine_of(database_url)
    async with engine.begin() as connection:
        for insert in MANY_ENDED:
            await connection.execute(text(insert))
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE"))
        explain = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        key = {"tenant": A} if statement is ledger_statements.RECOUNT else {}
        plan = (await connection.execute(explain, key)).scalar_one()[0]["Plan"]
    await engine.dispose()
    assert 0 < _rows_read(plan) < 50


def _rows_read(node: dict[str, Any]) -> int:
    """The rows that the scans of a plan came upon."""
    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if "Relation Name" in node else 0
    return int(seen * node["Actual Loops"]) + sum(map(_rows_read, node.get("Plans", ())))
