"""Tidies up what has ended."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from parrot_manager import clock
from parrot_manager.settings import ManagerSettings
from parrot_manager.store.base import Store
from parrot_manager.values import Values
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import TROUBLE

SESSIONS_A_ROUND: Final = 100

log = structlog.get_logger()


async def run_upkeep(store: Store, values: Values, settings: ManagerSettings) -> None:
    """Tidies up for ever."""
    while True:
        await purge_ended(store, values, clock.now_ms() - round(settings.purge_after_s * 1000))
        await asyncio.sleep(settings.upkeep_interval_s)


async def purge_ended(store: Store, values: Values, ended_before_ms: int) -> int:
    """Takes sessions that ended before a time off the bus; returns how many.

    Troubles wait for the next round.
    """
    purged: list[str] = []
    try:
        for tenant, session_id in await store.unpurged(ended_before_ms, SESSIONS_A_ROUND):
            await values.purge(tenant, session_id)
            purged.append(session_id)
    except (Fault, *TROUBLE) as error:
        log.warning("purge interrupted", error=repr(error))
    if purged:
        try:
            await store.mark_purged(purged)
        except Fault as fault:
            log.warning("purge not noted; it is done again", reason=fault.message)
    return len(purged)
