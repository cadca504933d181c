"""Tenants in Postgres. Budgets are refilled by the database's clock, when they are looked at."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Row, Table, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from parrot_manager.core.tenants import Tenant, TenantLimits
from parrot_manager.store import ledger_statements as ledger
from parrot_manager.store.ledger import tenant_of
from parrot_manager.store.retry import Observer, retrying
from parrot_manager.store.tables import ApiKeyRow
from parrot_manager.store.tenants import BURST_S, ApiKey, RequestLease, Tenants, same_key
from parrot_manager.store.turns import Turns

MEASURE_S: Final = 30.0
"""So much longer may it take to sum up what a tenant has stored."""

_KEYS: Final = cast(Table, ApiKeyRow.__table__)
_ADD_KEY: Final = insert(_KEYS).on_conflict_do_nothing()
_THIS_KEY: Final = select(_KEYS).where(_KEYS.c.id == bindparam("k_id"))
_REVOKE: Final = update(_KEYS).where(_KEYS.c.id == bindparam("k_id"), _KEYS.c.revoked_ms == 0)

T = TypeVar("T")


class PostgresTenants(Tenants):
    """Each method is one transaction, tried for `deadline_s` at most."""

    def __init__(
        self, engine: AsyncEngine, deadline_s: float, turns: Turns, observer: Observer | None = None
    ) -> None:
        self._engine = engine
        self._deadline_s = deadline_s
        self._turns = turns
        self._observer = observer

    async def add_key(self, key: ApiKey) -> ApiKey:
        async def add(connection: AsyncConnection) -> ApiKey:
            await connection.execute(_ADD_KEY, asdict(key))
            return same_key(_key((await connection.execute(_THIS_KEY, {"k_id": key.id})).one()), key)

        return await self._transact("add_key", add)

    async def find_key(self, key_id: str) -> ApiKey | None:
        async def find(connection: AsyncConnection) -> ApiKey | None:
            row = (await connection.execute(_THIS_KEY, {"k_id": key_id})).first()
            return _key(row) if row is not None else None

        return await self._transact("find_key", find)

    async def list_keys(self, tenant: str) -> list[ApiKey]:
        query = select(_KEYS).order_by(_KEYS.c.created_ms, _KEYS.c.id)

        async def find(connection: AsyncConnection) -> list[ApiKey]:
            mine = query.where(_KEYS.c.tenant == tenant) if tenant else query
            return [_key(row) for row in await connection.execute(mine)]

        return await self._transact("list_keys", find)

    async def revoke_key(self, key_id: str, now_ms: int) -> ApiKey | None:
        async def revoke(connection: AsyncConnection) -> ApiKey | None:
            await connection.execute(_REVOKE.values(revoked_ms=now_ms), {"k_id": key_id})
            row = (await connection.execute(_THIS_KEY, {"k_id": key_id})).first()
            return _key(row) if row is not None else None

        return await self._transact("revoke_key", revoke)

    async def set_limits(self, name: str, limits: TenantLimits | None) -> Tenant | None:
        key = {"tenant": name}

        async def limit(connection: AsyncConnection) -> Tenant | None:
            if limits is None:
                await connection.execute(ledger.UNLIMIT, key)
                return None
            told = await connection.execute(ledger.LIMIT, key | asdict(limits))
            await connection.execute(ledger.RECOUNT, key)
            if told.one().fresh:
                await connection.execute(ledger.MEASURE, key)
            return tenant_of((await connection.execute(ledger.SELECT_NAMED, key)).one())

        return await self._transact("set_limits", limit, MEASURE_S)

    async def get(self, name: str) -> Tenant | None:
        async def find(connection: AsyncConnection) -> Tenant | None:
            row = (await connection.execute(ledger.SELECT_NAMED, {"tenant": name})).first()
            return tenant_of(row) if row is not None else None

        return await self._transact("get_tenant", find)

    async def everyone(self) -> list[Tenant]:
        async def find(connection: AsyncConnection) -> list[Tenant]:
            return [tenant_of(row) for row in await connection.execute(ledger.SELECT_ALL)]

        return await self._transact("list_tenants", find)

    async def recount(self) -> list[str]:
        async def look(connection: AsyncConnection) -> list[str]:
            return [row.name for row in await connection.execute(ledger.MISCOUNTED)]

        # Only these tenants' writes wait until they are counted.
        wrong = await self._transact("find_miscounted", look)
        return [name for name in wrong if await self._recount(name)]

    async def lease_requests(self, name: str, wanted: int, returned: int) -> RequestLease:
        key = {"tenant": name, "wanted": wanted, "returned": returned, "burst": BURST_S}

        async def lease(connection: AsyncConnection) -> RequestLease:
            row = (await connection.execute(ledger.LEASE_REQUESTS, key)).first()
            self._turns.note((name,), name if row is not None else "")
            return _lease(row) if row is not None else RequestLease(wanted, 0)

        if not self._turns.known((name,)):
            # A look waits for nobody.
            self._turns.note((name,), name if await self.get(name) is not None else "")
        async with self._turns.of(self._turns.known((name,))):
            return await self._transact("lease_requests", lease)

    async def _recount(self, name: str) -> bool:
        async def count(connection: AsyncConnection) -> bool:
            await connection.execute(ledger.LOCK, {"tenant": name})
            return (await connection.execute(ledger.RECOUNT, {"tenant": name})).first() is not None

        return await self._transact("recount", count)

    async def _transact(
        self, what: str, work: Callable[[AsyncConnection], Awaitable[T]], longer_s: float = 0.0
    ) -> T:
        async def transact() -> T:
            async with self._engine.begin() as connection:
                return await work(connection)

        return await retrying(transact, what, self._deadline_s + longer_s, self._observer)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(row.id, row.tenant, row.label, row.digest, row.created_ms, row.revoked_ms)


def _lease(row: Row[Any]) -> RequestLease:
    granted = int(row.granted)
    if granted or not row.rate:
        return RequestLease(granted, row.rate)
    return RequestLease(0, row.rate, math.ceil((1 - float(row.budget)) / row.rate * 1000))
