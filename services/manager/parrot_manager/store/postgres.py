"""The store in Postgres, through SQLAlchemy and asyncpg.

Rows are locked in one order (sessions, calls, variables, attempts; each by key). Guards keep what
has ended as it is, at any isolation level, so that a write can be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, Select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import Attempt, Call, Session, Value, Variable
from parrot_manager.store import rows, statements
from parrot_manager.store.base import SessionRecord, Store
from parrot_manager.store.retry import retrying

POOL_SIZE: Final = 8
STATEMENT_TIMEOUT_S: Final = 30
CONNECT_TIMEOUT_S: Final = 5
SESSIONS_A_LOAD: Final = 200

T = TypeVar("T")


def engine_of(url: str) -> AsyncEngine:
    """The pool of connections to `postgresql://...`."""
    return create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"),
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=STATEMENT_TIMEOUT_S,
        connect_args={"timeout": CONNECT_TIMEOUT_S, "command_timeout": STATEMENT_TIMEOUT_S},
    )


@asynccontextmanager
async def opened(url: str, deadline_s: float) -> AsyncIterator[PostgresStore]:
    """The store at a URL, whose schema is in place."""
    engine = engine_of(url)
    try:
        yield PostgresStore(engine, deadline_s)
    finally:
        await engine.dispose()


class PostgresStore(Store):
    """Each method is one transaction, tried for `deadline_s` at most."""

    def __init__(self, engine: AsyncEngine, deadline_s: float) -> None:
        self._engine = engine
        self._deadline_s = deadline_s

    async def insert_session(self, session: Session) -> None:
        await self._write("insert_session", [(statements.INSERT_SESSION, [rows.session_row(session)])])

    async def insert_calls(
        self,
        session_id: str,
        calls: Sequence[Call],
        variables: Sequence[Variable],
        values: Sequence[Value],
    ) -> None:
        data = {value.variable_id: value.data for value in values}
        await self._write(
            "insert_calls",
            [
                (statements.INSERT_CALL, [rows.call_row(call) for call in calls]),
                (
                    statements.INSERT_VARIABLE,
                    [rows.variable_row(v, data.get(v.id)) for v in _by_id(variables)],
                ),
            ],
        )

    async def remove_calls(
        self, session_id: str, calls: Sequence[Call], variables: Sequence[Variable]
    ) -> None:
        await self._write(
            "remove_calls",
            [
                (
                    statements.DELETE_CALL,
                    [{"k_session": session_id, "k_number": call.number} for call in calls],
                ),
                (
                    statements.DELETE_VARIABLE,
                    [{"k_session": session_id, "k_id": v.id} for v in _by_id(variables)],
                ),
            ],
        )

    async def commit(self, session_id: str, changes: Changes) -> None:
        session = changes.session
        calls = sorted(changes.calls, key=lambda call: call.number)
        valued = {value.variable_id for value in changes.values}
        silent = [variable for variable in changes.variables if variable.id not in valued]
        await self._write(
            "commit",
            [
                (statements.UPDATE_SESSION, [_session_status(session)] if session else []),
                (
                    statements.UPDATE_CALL,
                    [_key(call, k_number=call.number) | rows.call_status(call) for call in calls],
                ),
                (
                    statements.UPDATE_VARIABLE,
                    [_key(v, k_id=v.id) | rows.variable_status(v) for v in _by_id(silent)],
                ),
                (statements.UPDATE_VARIABLE, list(_valued(changes))),
                (
                    statements.UPSERT_ATTEMPT,
                    [rows.attempt_row(a) for a in sorted(changes.attempts, key=_attempt_key)],
                ),
            ],
        )

    async def load_live(self, ended_after_ms: int) -> list[SessionRecord]:
        async def load(connection: AsyncConnection) -> list[SessionRecord]:
            found = await connection.execute(statements.select_live(ended_after_ms))
            sessions = [rows.to_session(row) for row in found]
            records: list[SessionRecord] = []
            for start in range(0, len(sessions), SESSIONS_A_LOAD):
                records += await _load(connection, sessions[start : start + SESSIONS_A_LOAD], live=True)
            return records

        return await self._read("load_live", load)

    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        async def load(connection: AsyncConnection) -> SessionRecord | None:
            query = statements.select_session(tenant, session_id)
            row = (await connection.execute(query)).one_or_none()
            if row is None:
                return None
            return (await _load(connection, [rows.to_session(row)], live=False))[0]

        return await self._read("load_session", load)

    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        query = statements.select_value(session_id, variable_id)

        async def read(connection: AsyncConnection) -> bytes | None:
            row = (await connection.execute(query)).first()
            return row[0] if row is not None else None

        return await self._read("read_value", read)

    async def unpurged(self, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        query = statements.select_unpurged(ended_before_ms, limit)

        async def read(connection: AsyncConnection) -> list[tuple[str, str]]:
            return [(row.tenant, row.id) for row in await connection.execute(query)]

        return await self._read("unpurged", read)

    async def mark_purged(self, session_ids: Sequence[str]) -> None:
        await self._write(
            "mark_purged", [(statements.MARK_PURGED, [{"k_id": name} for name in sorted(session_ids)])]
        )

    async def _write(self, what: str, statements: list[tuple[Executable, list[rows.Params]]]) -> None:
        async def write() -> None:
            async with self._engine.begin() as connection:
                for statement, parameters in statements:
                    if parameters:
                        await connection.execute(statement, parameters)

        await retrying(write, what, self._deadline_s)

    async def _read(self, what: str, query: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async def read() -> T:
            async with self._engine.connect() as connection:
                return await query(connection)

        return await retrying(read, what, self._deadline_s)


async def _load(connection: AsyncConnection, sessions: list[Session], *, live: bool) -> list[SessionRecord]:
    ids = [session.id for session in sessions]
    calls = await _grouped(connection, statements.select_calls(ids, live=live), rows.to_call)
    variables = await _grouped(connection, statements.select_variables(ids), rows.to_variable)
    attempts = await _grouped(connection, statements.select_attempts(ids), rows.to_attempt) if live else {}
    return [
        SessionRecord(
            session,
            tuple(calls.get(session.id, ())),
            tuple(variables.get(session.id, ())),
            tuple(attempts.get(session.id, ())),
        )
        for session in sessions
    ]


async def _grouped(
    connection: AsyncConnection, query: Select[Any], convert: Callable[[Any], T]
) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for row in await connection.execute(query):
        found.setdefault(row.session_id, []).append(convert(row))
    return found


def _key(owner: Call | Variable, **key: object) -> rows.Params:
    return {"k_session": owner.session_id, **key}


def _by_id(variables: Iterable[Variable]) -> list[Variable]:
    return sorted(variables, key=lambda variable: variable.id)


def _attempt_key(attempt: Attempt) -> tuple[str, int]:
    return attempt.ref.call_id, attempt.ref.attempt


def _session_status(session: Session) -> rows.Params:
    return {"k_id": session.id, "state": int(session.state), "ended_ms": session.ended_ms}


def _valued(changes: Changes) -> Iterable[rows.Params]:
    data = {value.variable_id: value.data for value in changes.values}
    for variable in _by_id(variable for variable in changes.variables if variable.id in data):
        key = _key(variable, k_id=variable.id)
        yield key | rows.variable_status(variable) | {"value": data[variable.id]}
