"""The schema is what the code says, and a wrong one is refused."""

from __future__ import annotations

import asyncio

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from tests.support.manager import eventually

from parrot_manager.core.tenants import TenantLimits
from parrot_manager.store import schema
from parrot_manager.store.postgres import engine_of, opened
from parrot_manager.store.tables import Base
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


async def test_the_models_equal_all_migrations_applied(database_url: str) -> None:
    await schema.migrate(database_url, 10)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return list(compare_metadata(context, Base.metadata))

    engine = engine_of(database_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_migrations_go_up_down_and_up_again(database_url: str) -> None:
    async def tables() -> set[str]:
        engine = engine_of(database_url)
        async with engine.connect() as connection:
            names = await connection.run_sync(lambda c: set(inspect(c).get_table_names()))
        await engine.dispose()
        return names - {"alembic_version"}

    await schema.migrate(database_url, 10)
    assert await tables() == set(Base.metadata.tables)
    await schema.migrate(database_url, 10)
    await schema.migrate(database_url, 10, "base")
    assert await tables() == set()
    await schema.migrate(database_url, 10)
    assert await tables() == set(Base.metadata.tables)
    await schema.check(database_url, 10)


async def test_rows_outlive_a_step_down_and_up_again(database_url: str) -> None:
    async def run(*statements: str) -> list[tuple[object, ...]]:
        engine = engine_of(database_url)
        async with engine.begin() as connection:
            for statement in statements[:-1]:
                await connection.execute(text(statement))
            found = [tuple(row) for row in await connection.execute(text(statements[-1]))]
        await engine.dispose()
        return found

    await schema.migrate(database_url, 10, "0002")
    # What code of before wrote.
    await run(
        "INSERT INTO sessions (id, tenant, label, state, created_ms, deadline_ms, ended_ms, trace) "
        "VALUES ('s00-0000000000000001', 't', 'l', 1, 1, 2, 0, '{}')",
        "INSERT INTO variables (session_id, id, name, state, producer_call_id, size_bytes, ready_ms, value) "
        "VALUES ('s00-0000000000000001', 'a', 'n', 3, '', 1, 1, 'x')",
        "SELECT 1",
    )
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        (record,) = await store.load_live([0], 0)
        assert (record.session.lazy, record.session.criteria, record.variables[0].value_digest) == (
            False,
            None,
            b"",
        )
        assert await store.read_value(record.session.id, "a") == b"x"
    await schema.migrate(database_url, 10, "0002")
    assert await run("SELECT id, label FROM sessions") == [("s00-0000000000000001", "l")]
    await schema.migrate(database_url, 10)
    assert await run("SELECT value FROM variables") == [(b"x",)]


async def test_a_step_and_a_manager_that_want_each_others_tables_both_get_on(database_url: str) -> None:
    """A step takes several tables, one after the other; a manager that has one of them may want another."""
    await schema.migrate(database_url, 10, "0005")
    engine = engine_of(database_url)
    async with engine.connect() as manager, engine.connect() as other:

        async def waits() -> bool:
            held_up = await other.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            return bool(held_up.scalar())

        await manager.execute(text("LOCK TABLE sessions IN ROW EXCLUSIVE MODE"))
        migrating = asyncio.create_task(schema.migrate(database_url, 10))
        await eventually(waits)
        # The step has the calls by now, and Postgres ends one of the two.
        await manager.execute(text("LOCK TABLE calls IN ROW EXCLUSIVE MODE"))
        await manager.commit()
        await migrating
    await engine.dispose()
    await schema.check(database_url, 10)


async def test_calls_of_before_tenants_had_limits_are_counted_when_they_get_some(database_url: str) -> None:
    engine = engine_of(database_url)

    async def run(statement: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(text(statement))

    await schema.migrate(database_url, 10, "0003")
    await run(
        "INSERT INTO sessions (id, tenant, label, state, created_ms, deadline_ms, ended_ms, trace) "
        "VALUES ('s00-0000000000000001', 't', 'l', 1, 1, 2, 0, '{}')"
    )
    await run(
        "INSERT INTO calls (session_id, number, position, name, model, inputs, outputs, spec, state, "
        "engine_id, attempt, prompt_tokens, cached_tokens, output_tokens, queue_ms, prefill_ms, decode_ms, "
        "accepted_ms, ready_ms, dispatched_ms, ended_ms) VALUES ('s00-0000000000000001', 1, 1, 'f', '', "
        "'[]', '[]', '', 2, '', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)"
    )
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        (record,) = await store.load_live([0], 0)
        assert (record.calls[0].reserved_tokens, record.calls[0].native) == (0, None)
        limited = await store.tenants.set_limits("t", TenantLimits(calls=5))
        assert limited is not None
        assert (limited.taken.sessions, limited.taken.calls) == (1, 1)
    await schema.migrate(database_url, 10, "0003")
    await run("UPDATE calls SET ended_ms = 1")
    await engine.dispose()
    await schema.migrate(database_url, 10)
    async with opened(database_url, 5) as store:
        assert await store.tenants.get("t") is None


async def test_a_schema_of_a_later_version_is_refused_and_left_alone(database_url: str) -> None:
    await schema.migrate(database_url, 10)
    engine = engine_of(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()
    for refused in (schema.check(database_url, 10), schema.migrate(database_url, 10)):
        with pytest.raises(Fault, match="has schema 9999, this version knows none later"):
            await refused


async def test_a_schema_that_is_not_there_is_refused_with_what_to_do(database_url: str) -> None:
    with pytest.raises(Fault, match="parrot-manager --migrate"):
        await schema.check(database_url, 2)


async def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(Fault) as refused:
        await schema.check("postgresql://user:secret@127.0.0.1:1/nothing", 0.2)
    assert "127.0.0.1:1" in refused.value.message
    assert "is it running" in refused.value.message
    assert "secret" not in refused.value.message


async def test_a_database_with_another_name_is_told_at_once(database_url: str) -> None:
    with pytest.raises(Fault, match="does not exist"):
        await schema.check(database_url.replace("/test_", "/nothing_"), 30)
