"""The database roles that are shipped in deploy/postgres, in a database of a test's."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from parrot_manager.store import schema
from tests.support.postgres import PostgresServer

ROLES_SQL = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sql"
PASSWORDS = {f"PARROT_{role}_PASSWORD": f"of-{role.lower()}" for role in ("OWNER", "MANAGER", "BACKUP")}


@dataclass(frozen=True, slots=True)
class Roles:
    """A database's URL for each role."""

    owner: str
    manager: str
    backup: str


def with_roles(server: PostgresServer, url: str) -> Roles:
    """The URLs of a database once the roles are in it."""
    command = [str(server.bin / "psql"), "--no-psqlrc", "--quiet", "--file", str(ROLES_SQL), url]
    done = subprocess.run(
        command, env={**os.environ, **PASSWORDS}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Roles(*(_as(url, role) for role in ("owner", "manager", "backup")))


async def migrated(server: PostgresServer, url: str) -> str:
    """The URL by which a manager works in a database, whose tables are their owner's."""
    roles = await asyncio.to_thread(with_roles, server, url)
    await schema.migrate(roles.owner, 10)
    return roles.manager


def _as(url: str, role: str) -> str:
    found = make_url(url).set(username=f"parrot_{role}", password=f"of-{role}")
    return found.render_as_string(hide_password=False)
