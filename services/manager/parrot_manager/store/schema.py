"""The schema's version: bringing it up to date, and refusing to start on one that does not fit.

A schema that is newer than this code fits when it says so (`migrations/versions`): managers of the release
before go on, and start, beside those of the next.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from parrot_manager.store.postgres import engine_of
from parrot_manager.store.retry import TROUBLE, passes, retrying
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.tls_words import words_of

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

SCRIPTS: Final = "parrot_manager:migrations"
STEPS: tuple[str, ...] = (f"{SCRIPTS}/versions",)
"""Where the steps are."""
MIGRATING: Final = 0x7061_7272_6F74
"""The advisory lock of whoever migrates."""
TURN_S: Final = 0.5
LONGEST_TURN_S: Final = 600.0
LOCK_S: Final = 2.0
"""How long a step waits for a table: meanwhile whoever wants it next waits behind the step."""
IN_USE: Final = frozenset({"55P03", "40P01"})
"""Postgres' states of a table that did not come in time, and of two who wait for each other: a step that
takes several tables, and a manager that has one of them and wants another."""

NOT_ALLOWED: Final = "42501"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """A database's schema.

    Attributes:
        revision: its newest step; empty: it has none.
        works_with: the newest step known to the oldest code that works with it; empty: it says nothing.
    """

    revision: str
    works_with: str

    @property
    def is_known(self) -> bool:
        """Whether this code can have made it."""
        return not self.revision or self.revision in _known()

    @property
    def fits(self) -> bool:
        """Whether this code works with it."""
        return self.revision == head_revision() or (not self.is_known and self.works_with in _known())


async def migrate(url: str, timeout_s: float, revision: str = "head") -> None:
    """Brings the schema to `revision`, up or down as that takes; a newer one that fits stays as it is.

    Raises:
        Fault: `unavailable`, when the database can't be reached within `timeout_s`, or its schema is of
            a later version that this one can't work with, or somebody else migrates it for too long.
    """
    engine = engine_of(url)
    try:
        await _current(engine, url, timeout_s)
        async with engine.connect() as connection:
            await _wait_for_turn(connection)
            found = await connection.run_sync(_found)
            await connection.commit()
            if not found.is_known:
                if revision != "head" or not found.fits:
                    raise _too_new(url, found)
                log.info("the schema is of a later version, and fits", schema=found.revision)
                return
            await _apply(connection, revision, found.revision)
        log.info("migrated", before=found.revision or "nothing", after=revision)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", "") == NOT_ALLOWED:
            raise _not_the_owner(url, error) from error
        raise
    finally:
        await engine.dispose()


async def check(url: str, timeout_s: float) -> None:
    """Returns when the database is there and its schema fits this code.

    One that is older than the code is waited for: whoever migrates it may be about to.

    Raises:
        Fault: `unavailable`, when that is not so within `timeout_s`; at once, when the schema is of a later
            version that this one can't work with.
    """
    until_s = time.monotonic() + timeout_s
    engine = engine_of(url)
    told = False
    try:
        while not (found := await _current(engine, url, max(TURN_S, until_s - time.monotonic()))).fits:
            if not found.is_known:
                raise _too_new(url, found)
            if time.monotonic() > until_s:
                raise _too_old(url, found, timeout_s)
            if not told:
                told = True
                log.warning("the schema is not this version's yet", schema=found.revision or "nothing")
            await asyncio.sleep(min(TURN_S, timeout_s))
    finally:
        await engine.dispose()
    if not found.is_known:
        log.warning("the schema is of a later version, and fits", schema=found.revision)


async def _apply(connection: AsyncConnection, revision: str, found: str) -> None:
    """Runs the steps. One that does not get its table soon lets the others go first, and tries again."""
    until_s = time.monotonic() + LONGEST_TURN_S
    await connection.execute(text(f"SET lock_timeout = '{LOCK_S:g}s'"))
    await connection.commit()
    while True:
        try:
            await connection.run_sync(_run, revision, found)
            await connection.commit()
            return
        except DBAPIError as error:
            await connection.rollback()
            if getattr(error.orig, "sqlstate", "") not in IN_USE or time.monotonic() > until_s:
                raise
            log.warning("a table is in use; the step is tried again")
        found = (await connection.run_sync(_found)).revision
        await connection.commit()
        await asyncio.sleep(TURN_S)


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


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _too_new(url: str, found: Found) -> Fault:
    needs = f" that needs code of {found.works_with} or later" if found.works_with else ""
    return Fault(
        errors.UNAVAILABLE,
        f"the database at {hide_password(url)} has schema {found.revision}{needs}, this version knows none "
        f"later than {head_revision()}: run the version of Parrot that made it, or the one before that",
    )


def _too_old(url: str, found: Found, waited_s: float) -> Fault:
    return Fault(
        errors.UNAVAILABLE,
        f"the database at {hide_password(url)} has schema {found.revision or 'nothing'}, this version needs "
        f"{head_revision()}, waited {waited_s:g} s: run `parrot-manager --migrate` with the same "
        "--postgres-url first",
    )


_SECRETS: Final = ("password", "sslpassword")


def hide_password(url: str) -> str:
    """A database's URL as it may be shown."""
    shown = make_url(url).difference_update_query(_SECRETS)
    return shown.render_as_string(hide_password=True)


async def _current(engine: AsyncEngine, url: str, timeout_s: float) -> Found:
    refusal = ""

    async def ask() -> Found:
        nonlocal refusal
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(_found)
        except TROUBLE as error:
            # Of a certificate it is told once, and otherwise only hung up.
            refusal = words_of(error) or refusal
            raise

    try:
        return await retrying(ask, "connect", timeout_s)
    except TROUBLE as error:
        raise _unreachable(url, timeout_s, error, refusal) from error
    except Fault as fault:
        raise _unreachable(url, timeout_s, fault.__cause__, refusal) from fault


def _not_the_owner(url: str, error: DBAPIError) -> Fault:
    why = str(error.orig).partition("\n")[0].rpartition(": ")[2]
    return Fault(
        errors.UNAVAILABLE,
        f"who connects to {hide_password(url)} may not change the schema ({why}): migrate as the tables' "
        "owner, which is parrot_owner where deploy/postgres/roles.sql was run",
    )


def _unreachable(url: str, timeout_s: float, error: BaseException | None, refusal: str) -> Fault:
    waited = f", waited {timeout_s:g} s" if error is not None and passes(error) else ""
    reason = [refusal] if refusal else str(getattr(error, "orig", None) or error or "").splitlines()
    return Fault(
        errors.UNAVAILABLE,
        f"no Postgres can be used at {hide_password(url)}{waited} ({reason[0] if reason else 'no answer'}); "
        "is it running, and is --postgres-url right?",
    )


def _found(connection: Connection) -> Found:
    revision = MigrationContext.configure(connection).get_current_revision() or ""
    if not inspect(connection).has_table("schema_steps"):
        return Found(revision, "")
    asked = text("SELECT works_with FROM schema_steps WHERE revision = :revision")
    return Found(revision, connection.execute(asked, {"revision": revision}).scalar() or "")


def _run(connection: Connection, revision: str, current: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    order = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    down = revision == "base" or (revision in order and current in order[: order.index(revision)])
    (command.downgrade if down else command.upgrade)(config, revision)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.set_main_option("version_locations", "\n".join(STEPS))
    config.set_main_option("path_separator", "newline")
    return config
