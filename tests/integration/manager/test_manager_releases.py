"""Managers of two releases on one database: whose schema is newer, and who waits for whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.support.later_schema import LATER, later_release
from tests.support.quotas import claim

from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.postgres import engine_of, opened
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


async def revision_of(url: str) -> str:
    """The newest step of a database."""
    engine = engine_of(url)
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
    await engine.dispose()
    return str(found)


async def test_a_manager_starts_on_the_schema_of_the_release_after_it(
    database_url: str, tmp_path: Path
) -> None:
    await schema.migrate(database_url, 10)
    with later_release(tmp_path):
        await schema.migrate(database_url, 10)
    assert await revision_of(database_url) == LATER
    await schema.check(database_url, 10)
    async with opened(database_url, 5) as store:
        await claim(store)
        assert await _is_used(store)


async def _is_used(store: Store) -> bool:
    return await store.load_live([0, 1], 0) == []


async def test_a_schema_that_needs_later_code_is_refused_at_once(database_url: str, tmp_path: Path) -> None:
    await schema.migrate(database_url, 10)
    with later_release(tmp_path, works_with=LATER):
        await schema.migrate(database_url, 10)
    async with asyncio.timeout(30):
        for refused in (schema.check(database_url, 600), schema.migrate(database_url, 600)):
            with pytest.raises(Fault, match=f"has schema {LATER} that needs code of {LATER} or later"):
                await refused


async def test_migrations_of_the_release_before_leave_a_later_schema_as_it_is(
    database_url: str, tmp_path: Path
) -> None:
    with later_release(tmp_path):
        await schema.migrate(database_url, 10)
    await schema.migrate(database_url, 10)
    assert await revision_of(database_url) == LATER
    with pytest.raises(Fault, match=LATER):
        await schema.migrate(database_url, 10, "0004")


async def test_managers_of_the_release_after_wait_for_their_migration(
    database_url: str, tmp_path: Path
) -> None:
    await schema.migrate(database_url, 10)
    with later_release(tmp_path):
        with pytest.raises(
            Fault, match=r"this version needs 9998, waited 2 s: run `parrot-manager --migrate`"
        ):
            await schema.check(database_url, 2)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(schema.check(database_url, 60))
                group.create_task(schema.migrate(database_url, 60))
    assert await revision_of(database_url) == LATER


async def test_a_step_lets_those_go_first_who_use_its_table(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_S", 0.1)
    await schema.migrate(database_url, 10)
    engine = engine_of(database_url)
    async with engine.connect() as user:
        await user.execute(text("SELECT count(*) FROM calls"))
        with later_release(tmp_path):
            migrating = asyncio.create_task(schema.migrate(database_url, 10))
            # Nobody waits behind the step for longer than it waits itself: it gives way, again and again.
            async with engine.connect() as other:
                for _ in range(20):
                    async with asyncio.timeout(5):
                        await other.execute(text("SELECT count(*) FROM calls"))
                        await other.rollback()
            assert not migrating.done()
            await user.rollback()
            await asyncio.wait_for(migrating, 60)
    await engine.dispose()
    assert await revision_of(database_url) == LATER
