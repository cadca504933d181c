"""The schema is what the code says, and a wrong one is refused."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect

from parrot_manager.store import schema
from parrot_manager.store.postgres import engine_of
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


async def test_a_schema_that_is_not_there_is_refused_with_what_to_do(database_url: str) -> None:
    with pytest.raises(Fault, match="parrot-manager --migrate"):
        await schema.check(database_url, 10)


async def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(Fault) as refused:
        await schema.check("postgresql://user:secret@127.0.0.1:1/nothing", 0.2)
    assert "127.0.0.1:1" in refused.value.message
    assert "is it running" in refused.value.message
    assert "secret" not in refused.value.message


async def test_a_database_with_another_name_is_told_at_once(database_url: str) -> None:
    with pytest.raises(Fault, match="does not exist"):
        await schema.check(database_url.replace("/test_", "/nothing_"), 30)
