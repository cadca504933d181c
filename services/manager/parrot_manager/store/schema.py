"""The schema's version: bringing it up to date, and refusing to start on any other."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import make_url

from parrot_manager.store.postgres import engine_of
from parrot_manager.store.retry import TROUBLE, passes, retrying
from parrot_runtime import errors
from parrot_runtime.errors import Fault

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

SCRIPTS: Final = "parrot_manager:migrations"
MIGRATING: Final = 0x7061_7272_6F74
"""The advisory lock of whoever migrates."""
TURN_S: Final = 0.5
LONGEST_TURN_S: Final = 600.0

log = structlog.get_logger()


async def migrate(url: str, timeout_s: float, revision: str = "head") -> None:
    """Brings the schema to `revision`, up or down as that takes.

    Raises:
        Fault: `unavailable`, when the database can't be reached within `timeout_s`, or its schema is of
            a later version, or somebody else migrates it for too long.
    """
    engine = engine_of(url)
    try:
        await _current(engine, url, timeout_s)
        async with engine.connect() as connection:
            await _wait_for_turn(connection)
            found = await connection.run_sync(_revision)
            await connection.commit()
            if not _is_known(found):
                raise _too_new(url, found)
            await connection.run_sync(_run, revision, found)
            await connection.commit()
        log.info("migrated", before=found or "nothing", after=revision)
    finally:
        await engine.dispose()


async def check(url: str, timeout_s: float) -> None:
    """Returns when the database is there and its schema is the one this code needs.

    Raises:
        Fault: `unavailable`, when it is not there within `timeout_s`, or its schema is another.
    """
    engine = engine_of(url)
    try:
        found = await _current(engine, url, timeout_s)
    finally:
        await engine.dispose()
    head = head_revision()
    if not _is_known(found):
        raise _too_new(url, found)
    if found != head:
        raise Fault(
            errors.UNAVAILABLE,
            f"the database at {hide_password(url)} has schema {found or 'nothing'}, this version needs "
            f"{head}: run `parrot-manager --migrate` with the same --postgres-url first",
        )


async def _wait_for_turn(connection: AsyncConnection) -> None:
    """Of several that migrate at once the later ones find it done. A turn lasts as long as its connection."""
    until_s = time.monotonic() + LONGEST_TURN_S
    while not (await connection.execute(text(f"SELECT pg_try_advisory_lock({MIGRATING})"))).scalar():
        await connection.rollback()
        if time.monotonic() > until_s:
            why = f"another process has migrated this database for {LONGEST_TURN_S:g} s; look what it does"
            raise Fault(errors.UNAVAILABLE, why)
        log.info("another process migrates this database; waiting for it")
        await asyncio.sleep(TURN_S)


def head_revision() -> str:
    """The newest revision of this code."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def _is_known(revision: str) -> bool:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return not revision or revision in known


def _too_new(url: str, found: str) -> Fault:
    return Fault(
        errors.UNAVAILABLE,
        f"the database at {hide_password(url)} has schema {found}, this version knows none later than "
        f"{head_revision()}: run the version of Parrot that made it, or go back with that one's migrations",
    )


def hide_password(url: str) -> str:
    """A database's URL as it may be shown."""
    return make_url(url).render_as_string(hide_password=True)


async def _current(engine: AsyncEngine, url: str, timeout_s: float) -> str:
    async def ask() -> str:
        async with engine.connect() as connection:
            return await connection.run_sync(_revision)

    try:
        return await retrying(ask, "connect", timeout_s)
    except TROUBLE as error:
        raise _unreachable(url, timeout_s, error) from error
    except Fault as fault:
        raise _unreachable(url, timeout_s, fault.__cause__) from fault


def _unreachable(url: str, timeout_s: float, error: BaseException | None) -> Fault:
    waited = f", waited {timeout_s:g} s" if error is not None and passes(error) else ""
    reason = str(getattr(error, "orig", None) or error or "").splitlines()
    return Fault(
        errors.UNAVAILABLE,
        f"no Postgres can be used at {hide_password(url)}{waited} ({reason[0] if reason else 'no answer'}); "
        "is it running, and is --postgres-url right?",
    )


def _revision(connection: Connection) -> str:
    return MigrationContext.configure(connection).get_current_revision() or ""


def _run(connection: Connection, revision: str, current: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    order = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    down = revision == "base" or (revision in order and current in order[: order.index(revision)])
    (command.downgrade if down else command.upgrade)(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.set_main_option("path_separator", "os")
    return config
