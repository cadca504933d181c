"""Leases and shards in Postgres. Every time in them is the database's clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from parrot_manager.store.leases import Holding, Leases, Member, Peer, Standing, replaced
from parrot_manager.store.retry import Observer, retrying

TRY_S: Final = 1.0
"""How long the first try may take; each further one twice as long."""
POOL_SIZE: Final = 3
"""One, and two more for when it is dead without a sign."""

T = TypeVar("T")

_ADD_SHARDS: Final = text(
    "INSERT INTO shards (shard, epoch, manager_id) SELECT unnest(CAST(:shards AS smallint[])), 0, '' "
    "ON CONFLICT DO NOTHING"
)
_JOIN: Final = text(
    "INSERT INTO managers (id, incarnation, address, leaving, expires_at) "
    "VALUES (:id, :incarnation, :address, false, clock_timestamp() + CAST(:lease AS interval)) "
    "ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, address = excluded.address, "
    "leaving = false, expires_at = excluded.expires_at"
)
_RENEW: Final = text(
    "INSERT INTO managers (id, incarnation, address, leaving, expires_at) "
    "VALUES (:id, :incarnation, :address, :leaving, clock_timestamp() + CAST(:lease AS interval)) "
    "ON CONFLICT (id) DO UPDATE SET leaving = excluded.leaving, expires_at = excluded.expires_at "
    "WHERE managers.incarnation = excluded.incarnation RETURNING id"
)
_FORGET: Final = text("DELETE FROM managers WHERE expires_at < clock_timestamp() - interval '1 hour'")
_PEERS: Final = text(
    "SELECT id, address, leaving, extract(epoch FROM expires_at - clock_timestamp()) AS expires_in_s "
    "FROM managers WHERE expires_at > clock_timestamp() ORDER BY id"
)
_HOLDINGS: Final = text("SELECT shard, epoch, manager_id FROM shards ORDER BY shard")
# What is locked is skipped: a writer is in the middle of a transaction there. The next claim gets it.
_CLAIM: Final = text(
    "UPDATE shards SET epoch = epoch + 1, manager_id = :id WHERE shard IN ("
    "  SELECT shard FROM shards s WHERE shard = ANY(CAST(:shards AS smallint[])) "
    "  AND (manager_id = :id OR NOT EXISTS (SELECT FROM managers m "
    "       WHERE m.id = s.manager_id AND m.expires_at > clock_timestamp())) "
    "  ORDER BY shard FOR UPDATE SKIP LOCKED) "
    "AND EXISTS (SELECT FROM managers WHERE id = :id AND incarnation = :incarnation "
    "            AND expires_at > clock_timestamp()) "
    "RETURNING shard, epoch"
)
_RELEASE: Final = text(
    "UPDATE shards SET manager_id = '' WHERE shard = :shard AND epoch = :epoch AND manager_id = :id"
)
_RELEASE_ALL: Final = text(
    "UPDATE shards SET manager_id = '' WHERE manager_id = :id "
    "AND EXISTS (SELECT FROM managers WHERE id = :id AND incarnation = :incarnation)"
)
_LEAVE: Final = text("DELETE FROM managers WHERE id = :id AND incarnation = :incarnation")


class PostgresLeases(Leases):
    """Each method is one transaction, tried for `deadline_s` at most."""

    def __init__(self, engine: AsyncEngine, deadline_s: float, observer: Observer | None = None) -> None:
        self._engine = engine
        self._observer = observer
        self._deadline_s = deadline_s
        self._trying: set[asyncio.Future[Any]] = set()

    async def join(self, me: Member, shards: Collection[int], lease_s: float) -> Standing:
        async def join(connection: AsyncConnection) -> Standing:
            await connection.execute(_ADD_SHARDS, {"shards": sorted(shards)})
            await connection.execute(_FORGET)
            await connection.execute(_JOIN, _member(me) | {"address": me.address, "lease": _lease(lease_s)})
            return await _standing(connection)

        return await self._transact("join", join)

    async def renew(self, me: Member, lease_s: float, *, leaving: bool = False) -> Standing:
        row = _member(me) | {"address": me.address, "lease": _lease(lease_s), "leaving": leaving}

        async def renew(connection: AsyncConnection) -> Standing:
            if (await connection.execute(_RENEW, row)).first() is None:
                raise replaced(me)
            return await _standing(connection)

        return await self._transact("renew", renew)

    async def claim(self, me: Member, shards: Collection[int]) -> dict[int, int]:
        async def claim(connection: AsyncConnection) -> dict[int, int]:
            found = await connection.execute(_CLAIM, _member(me) | {"shards": sorted(shards)})
            return {row.shard: row.epoch for row in found}

        return await self._transact("claim", claim)

    async def release(self, me: Member, held: Mapping[int, int]) -> None:
        given = [{"id": me.id, "shard": shard, "epoch": epoch} for shard, epoch in sorted(held.items())]

        async def release(connection: AsyncConnection) -> None:
            if given:
                await connection.execute(_RELEASE, given)

        await self._transact("release", release)

    async def leave(self, me: Member) -> None:
        async def leave(connection: AsyncConnection) -> None:
            await connection.execute(_RELEASE_ALL, _member(me))
            await connection.execute(_LEAVE, _member(me))

        await self._transact("leave", leave)

    async def _transact(self, what: str, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async def transact() -> T:
            async with self._engine.begin() as connection:
                return await work(connection)

        tries = itertools.count()

        def attempt() -> Awaitable[T]:
            return self._abandonable(transact(), TRY_S * 2 ** next(tries))

        return await retrying(attempt, f"lease {what}", self._deadline_s, self._observer)

    async def _abandonable(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """What comes of `work`, if that comes soon; else it is left to end by itself.

        Closing a connection that is dead without a sign takes longer than a lease may wait.
        """
        task = asyncio.ensure_future(work)
        self._trying.add(task)
        task.add_done_callback(self._done)
        try:
            await asyncio.wait({task}, timeout=within_s)
            if task.done():
                return task.result()
            raise TimeoutError
        finally:
            task.cancel()

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._trying.discard(task)
        if not task.cancelled():
            # Whoever waits for it has it already, or has given it up.
            task.exception()


async def _standing(connection: AsyncConnection) -> Standing:
    peers = await connection.execute(_PEERS)
    holdings = await connection.execute(_HOLDINGS)
    return Standing(
        tuple(Peer(row.id, row.address, row.leaving, float(row.expires_in_s)) for row in peers),
        tuple(Holding(row.shard, row.epoch, row.manager_id) for row in holdings),
    )


def _member(me: Member) -> dict[str, object]:
    return {"id": me.id, "incarnation": me.incarnation}


def _lease(lease_s: float) -> timedelta:
    return timedelta(seconds=lease_s)
