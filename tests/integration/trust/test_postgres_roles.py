"""The database's roles: a manager works as its own, and can't change the schema; a backup changes nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.support.postgres import PostgresServer
from tests.support.roles import Roles, with_roles

from parrot_manager.store import schema
from parrot_manager.store.postgres import opened
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio
SCRIPTS = Path(__file__).parents[3] / "deploy" / "postgres"
CHANGES = (
    "CREATE TABLE mine (id int)",
    "CREATE TEMPORARY TABLE mine (id int)",
    "ALTER TABLE sessions ADD COLUMN mine int",
    "DROP TABLE sessions",
    "TRUNCATE sessions",
    "CREATE INDEX mine ON sessions (id)",
    "CREATE ROLE mine",
    "SET ROLE parrot_owner",
    "COPY sessions TO PROGRAM 'true'",
)
"""What only somebody may who owns the schema, or the server."""


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


async def refused(url: str, statement: str) -> bool:
    """Whether a role may not do something."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    finally:
        await connection.close()
    return False


async def migrated(postgres: PostgresServer, database: str) -> Roles:
    """A database with the roles, its tables made by their owner."""
    roles = with_roles(postgres, database)
    await schema.migrate(roles.owner, 10)
    return roles


async def test_a_manager_changes_what_is_in_the_tables_and_no_more(
    postgres: PostgresServer, database: str
) -> None:
    roles = await migrated(postgres, database)
    assert not await refused(roles.manager, "DELETE FROM sessions")
    assert [change for change in CHANGES if not await refused(roles.manager, change)] == []


async def test_a_manager_can_t_migrate(postgres: PostgresServer, database: str) -> None:
    roles = with_roles(postgres, database)
    with pytest.raises(Fault, match=r"parrot_manager.* may not change the schema \(permission denied"):
        await schema.migrate(roles.manager, 5)
    await schema.migrate(roles.owner, 10)
    await schema.check(roles.manager, 5)


async def test_a_backup_reads_and_changes_nothing(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    roles = await migrated(postgres, database)
    changes = (*CHANGES, "DELETE FROM sessions")
    assert [change for change in changes if not await refused(roles.backup, change)] == []
    dump = tmp_path / "parrot.dump"
    script(postgres, "backup.sh", roles.backup, dump)
    restored = postgres.new_database()
    try:
        script(postgres, "restore.sh", with_roles(postgres, restored).owner, dump)
        # What was restored is the manager's to use.
        async with opened(with_roles(postgres, restored).manager, 5) as store:
            assert await store.find_live([0], 0) == []
    finally:
        postgres.drop_database(restored)


async def test_a_database_of_one_role_goes_over_to_three(postgres: PostgresServer, database: str) -> None:
    await schema.migrate(database, 10)
    roles = with_roles(postgres, database)
    assert not await refused(roles.manager, "SELECT * FROM sessions")
    assert await refused(roles.manager, "DROP TABLE sessions")
    await schema.migrate(roles.owner, 10, "base")
    await schema.migrate(roles.owner, 10)
    assert not await refused(roles.manager, "DELETE FROM sessions")


async def test_the_roles_may_be_made_again(postgres: PostgresServer, database: str) -> None:
    await migrated(postgres, database)
    roles = with_roles(postgres, database)
    assert not await refused(roles.manager, "SELECT * FROM sessions")


def script(postgres: PostgresServer, name: str, url: str, dump: Path) -> None:
    """Runs one of the scripts that operators run."""
    environment = {**os.environ, "PATH": f"{postgres.bin}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(SCRIPTS / name), url, str(dump)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
