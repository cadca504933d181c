"""Tidies up what has ended."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from parrot_manager import clock
from parrot_manager.settings import ManagerSettings
from parrot_manager.shards import Shards
from parrot_manager.store.base import Store
from parrot_manager.store.retry import TROUBLE as STORE_TROUBLE
from parrot_manager.values import Values
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import TROUBLE

SESSIONS_A_ROUND: Final = 100
COUNTING_SHARD: Final = 0
"""Whoever holds it counts for all."""

log = structlog.get_logger()


async def run_upkeep(shards: Shards, store: Store, values: Values, settings: ManagerSettings) -> None:
    """Tidies up for ever, each manager its own shards."""
    while True:
        now_ms = clock.now_ms()
        for shard, epoch in list(shards.held.items()):
            await purge_ended(store, values, shard, epoch, now_ms - round(settings.purge_after_s * 1000))
            if settings.keep_sessions_s:
                await delete_ended(store, shard, epoch, now_ms - round(settings.keep_sessions_s * 1000))
        if COUNTING_SHARD in shards.held:
            await recount(store)
        await asyncio.sleep(settings.upkeep_interval_s)


async def recount(store: Store) -> None:
    """Counts anew what tenants have of their limits. Nothing to mend is to be expected.

    Except that a limit was set while something was written: that write did not know of it.
    """
    try:
        wrong = await store.tenants.recount()
    except (Fault, *STORE_TROUBLE) as error:
        log.warning("tenants not counted", error=repr(error))
    else:
        if wrong:
            log.warning("what tenants have was miscounted", tenants=wrong)


async def purge_ended(store: Store, values: Values, shard: int, epoch: int, ended_before_ms: int) -> int:
    """Takes a shard's sessions that ended before a time off the bus; returns how many.

    Troubles wait for the next round.
    """
    done = 0
    try:
        while found := await store.unpurged(shard, ended_before_ms, SESSIONS_A_ROUND):
            purged = [session_id for tenant, session_id in found if await _purge(values, tenant, session_id)]
            await store.mark_purged(shard, purged, epoch)
            done += len(purged)
            if not purged or len(found) < SESSIONS_A_ROUND:
                break
    except (Fault, *STORE_TROUBLE) as error:
        log.warning("purge interrupted", shard=shard, error=repr(error))
    return done


async def delete_ended(store: Store, shard: int, epoch: int, ended_before_ms: int) -> int:
    """Deletes a shard's sessions that ended before a time and are off the bus; returns how many.

    Troubles wait for the next round.
    """
    deleted, limit = 0, SESSIONS_A_ROUND
    while limit:
        try:
            more = await store.delete_ended(shard, ended_before_ms, limit, epoch)
        except (Fault, *STORE_TROUBLE) as error:
            log.warning("retention interrupted", shard=shard, sessions=limit, error=repr(error))
            # They may have been too large for one write.
            limit //= 2
        else:
            deleted += more
            limit = limit if more == limit else 0
    if deleted:
        log.info("ended sessions deleted", shard=shard, sessions=deleted)
    return deleted


async def _purge(values: Values, tenant: str, session_id: str) -> bool:
    try:
        await values.purge(tenant, session_id)
    except TROUBLE as error:
        log.warning("session not purged", session_id=session_id, error=repr(error))
        return False
    return True
