"""The store in Postgres, through SQLAlchemy and asyncpg.

Rows are locked in one order (shard, session, then as in `steps`, the tenant last; each by key). Guards
keep what has ended as it is, so that a write can be repeated. Transactions say their isolation level
themselves: read committed is all they need, whatever the database's default.

A writer shares the lock on its shard's row, which a claim has to wait for. So that one that stops in
the middle (a paused process, a cable pulled) can't keep the shard, the server ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import Row, Select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, SessionState
from parrot_manager.store import postgres_leases, rows, statements, steps
from parrot_manager.store.base import SessionRecord, Store, refused
from parrot_manager.store.ledger import Account, Freed, Refund, Settlement, charge_of_batch, charge_of_session
from parrot_manager.store.listing import ListedSession, Place
from parrot_manager.store.loads import queries_of, records_of, sliced
from parrot_manager.store.postgres_leases import PostgresLeases
from parrot_manager.store.postgres_tenants import PostgresTenants
from parrot_manager.store.retry import Observer, retrying
from parrot_manager.store.steps import Step
from parrot_manager.store.turns import Turns, in_turn
from parrot_runtime.ids import shard_of

POOL_SIZE: Final = 8
SPARED: Final = 2
"""Connections that writes which are counted for tenants leave to all the rest."""
STATEMENT_TIMEOUT_S: Final = 30
CONNECT_TIMEOUT_S: Final = 5
IDLE_IN_TRANSACTION_MS: Final = 2000
TRY_S: Final = 2.0
"""How long one try of a write may take: a connection can be dead without a sign."""
ROW_S: Final = 0.001
"""So much longer may a write take for each of its rows; it takes a tenth of that."""
DELETE_S: Final = 30.0
"""And so much a deletion, whose rows nobody has counted."""
ISOLATION: Final = "READ COMMITTED"


def engine_of(url: str, pool_size: int = POOL_SIZE, isolation: str = ISOLATION) -> AsyncEngine:
    """A pool of connections to `postgresql://...`, with TLS as libpq's parameters in it say."""
    given = make_url(url).set(drivername="postgresql+asyncpg")
    # The driver takes these from a URL alone, and reads the files they name at each connection.
    tls = {name: value for name, value in given.query.items() if name.startswith("ssl") and name != "ssl"}
    return create_async_engine(
        given.difference_update_query(tls),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=STATEMENT_TIMEOUT_S,
        isolation_level=isolation,
        connect_args={
            "dsn": URL.create("postgresql", query=tls).render_as_string(),
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": STATEMENT_TIMEOUT_S,
            "server_settings": {"idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS)},
        },
    )


@asynccontextmanager
async def opened(
    url: str, deadline_s: float, isolation: str = ISOLATION, observer: Observer | None = None
) -> AsyncIterator[PostgresStore]:
    """The store at a URL, whose schema is in place. `observer`: told how its operations go."""
    engine = engine_of(url, isolation=isolation)
    # Connections of their own: a lease must not run out because many commits wait for one.
    lease_engine = engine_of(url, postgres_leases.POOL_SIZE, isolation)
    try:
        leases = PostgresLeases(lease_engine, deadline_s, observer)
        yield PostgresStore(engine, deadline_s, leases, observer)
    finally:
        await engine.dispose()
        await lease_engine.dispose()


class PostgresStore(Store):
    """Each method is one transaction, tried for `deadline_s` at most."""

    def __init__(
        self,
        engine: AsyncEngine,
        deadline_s: float,
        leases: PostgresLeases,
        observer: Observer | None = None,
    ) -> None:
        self._engine = engine
        self._deadline_s = deadline_s
        self._leases = leases
        self._turns = Turns(POOL_SIZE - SPARED)
        self._observer = observer
        self._tenants = PostgresTenants(engine, deadline_s, self._turns, observer)

    @property
    def leases(self) -> PostgresLeases:
        return self._leases

    @property
    def tenants(self) -> PostgresTenants:
        return self._tenants

    async def insert_session(self, session: Session, epoch: int) -> None:
        given, charge = steps.of_session(session), charge_of_session(session)
        await self._write_session("insert_session", session.id, epoch, given, charge)

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        given, charge = steps.of_session_with_batch(session, accepted), charge_of_session(session, accepted)
        return await self._write_session(
            "insert_session_with_calls", session.id, epoch, given, charge, if_new=True
        )

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        given, charge = steps.of_batch(accepted), charge_of_batch(accepted)
        await self._write_session("insert_calls", accepted.session_id, epoch, given, charge)

    async def remove_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        given, refund = steps.of_removal(accepted), Refund(accepted)
        await self._write_session("remove_calls", accepted.session_id, epoch, given, refund)

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        settlement = Settlement(session_id, changes)
        account = settlement if settlement.is_due else None
        await self._write_session("commit", session_id, epoch, steps.of_changes(changes), account)

    async def find_live(self, shards: Collection[int], ended_after_ms: int) -> list[list[str]]:
        found = await self._rows("find_live", statements.select_live(shards, ended_after_ms))
        return sliced([(row.id, row.calls) for row in found])

    async def load(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        return await self._load(list(session_ids), live=True)

    async def read_session(self, session_id: str) -> Session | None:
        found = await self._rows("read_session", statements.select_session(session_id))
        return rows.to_session(found[0]) if found else None

    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        records = await self._load([session_id], live=False)
        return records[0] if records and records[0].session.tenant == tenant else None

    async def list_sessions(
        self, tenant: str, state: SessionState | None, after: Place | None, limit: int
    ) -> list[ListedSession]:
        found = await self._rows("list_sessions", statements.select_listed(tenant, state, after, limit))
        return [ListedSession(rows.to_session(row), row.calls, row.calls - row.unfinished) for row in found]

    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        return (await self.read_values(session_id, [variable_id])).get(variable_id)

    async def read_values(self, session_id: str, variable_ids: Sequence[str]) -> dict[str, bytes]:
        found = await self._rows("read_values", statements.select_values(session_id, list(variable_ids)))
        return {row.id: row.value for row in found}

    async def unpurged(self, shard: int, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        found = await self._rows("unpurged", statements.select_unpurged(shard, ended_before_ms, limit))
        return [(row.tenant, row.id) for row in found]

    async def mark_purged(self, shard: int, session_ids: Sequence[str], epoch: int) -> None:
        mark = (statements.MARK_PURGED, [{"k_id": name} for name in sorted(session_ids)])
        await self._write("mark_purged", shard, epoch, [mark])

    async def delete_session(self, tenant: str, session_id: str, epoch: int) -> None:
        await self._delete("delete_session", {session_id: tenant}, shard_of(session_id), epoch)

    async def delete_ended(self, shard: int, ended_before_ms: int, limit: int, epoch: int) -> int:
        outlived = await self._rows("outlived", statements.select_outlived(shard, ended_before_ms, limit))
        if outlived:
            await self._delete("delete_ended", {row.id: row.tenant for row in outlived}, shard, epoch)
        return len(outlived)

    async def _delete(self, what: str, tenants: dict[str, str], shard: int, epoch: int) -> None:
        """Deletes sessions, given with whose they are."""
        given = statements.delete_sessions(sorted(tenants))
        deletes: list[Step] = [(statement, [{}]) for statement in given]
        await self._write(what, shard, epoch, deletes, Freed(tenants), longer_s=DELETE_S)

    async def _write_session(
        self,
        what: str,
        session_id: str,
        epoch: int,
        given: list[Step],
        account: Account | None = None,
        *,
        if_new: bool = False,
    ) -> bool:
        shard = shard_of(session_id)
        return await self._write(what, shard, epoch, given, account, session_id=session_id, if_new=if_new)

    async def _write(
        self,
        what: str,
        shard: int,
        epoch: int,
        given: list[Step],
        account: Account | None = None,
        *,
        session_id: str = "",
        longer_s: float = 0.0,
        if_new: bool = False,
    ) -> bool:
        """One transaction; False: with `if_new`, its first statement added no row, and so it did nothing."""
        fence, tenant = account.fence if account is not None else (statements.FENCE, {})
        key = {"k_shard": shard, "k_epoch": epoch, **tenant}
        longer_s += ROW_S * sum(len(parameters) for _, parameters in given)
        owners = (session_id, *tenant.values()) if tenant else ()

        async def write() -> bool:
            turn = self._turns.known(owners)
            # The wait for a turn and a connection does not count: that many may be at it.
            async with (
                self._turns.of(turn),
                self._engine.connect() as connection,
                asyncio.timeout(TRY_S + longer_s),
                connection.begin(),
            ):
                held = (await connection.execute(fence, key)).first()
                if held is None:
                    raise refused(session_id)
                counted = account if account is not None and held.metered else None
                if owners:
                    self._turns.check(turn, held.metered or "", owners)
                if counted is not None:
                    await counted.begin(connection)
                if not await _carried_out(connection, given, if_new=if_new):
                    return False
                if counted is not None:
                    await counted.end(connection)
                return True

        return await retrying(lambda: in_turn(write), what, self._deadline_s + longer_s, self._observer)

    async def _load(self, session_ids: list[str], *, live: bool) -> list[SessionRecord]:
        found = {
            table: await self._rows(f"load {table}", query)
            for table, query in queries_of(session_ids, live=live).items()
        }
        # That many rows take a while, and the event loop has a lease to renew.
        return await asyncio.to_thread(records_of, found)

    async def _rows(self, what: str, query: Select[Any]) -> Sequence[Row[Any]]:
        async def read() -> Sequence[Row[Any]]:
            async with self._engine.connect() as connection:
                # One statement needs no transaction, which the server would see standing still.
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                found: Sequence[Row[Any]] = (await connection.execute(query)).all()
                return found

        return await retrying(read, what, self._deadline_s, self._observer)


async def _carried_out(connection: AsyncConnection, given: list[Step], *, if_new: bool) -> bool:
    for statement, parameters in given:
        if not parameters:
            continue
        if not if_new:
            await connection.execute(statement, parameters)
            continue
        if (await connection.execute(statement, parameters[0])).first() is None:
            return False
        if_new = False
    return True
