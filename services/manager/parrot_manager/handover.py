"""What becomes of sessions when their shard changes hands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from parrot_manager import clock
from parrot_manager.core.events import SessionReleased
from parrot_manager.restoring import restored
from parrot_manager.store.base import SessionRecord
from parrot_manager.store.retry import TROUBLE
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of

if TYPE_CHECKING:
    from parrot_manager.shell import Shell

FLUSH_S: Final = 5.0
RETRY_S: Final = 0.25
LARGE_CALLS: Final = 1_000
RECENT_MS: Final = 120_000
"""Sessions that ended so shortly before are told of again: the bus may not have heard."""

T = TypeVar("T")
log = structlog.get_logger()


class Handover:
    """Takes shards up from the store, and leaves them there."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def take_over(self, claimed: Mapping[int, int]) -> None:
        """Takes up what the store has of shards, and serves each as soon as it is complete.

        The engines go on meanwhile. The first they hear is whom they answer to from now on; that has to
        be read from the bus, which may be away: what else they are to hear waits, and nothing here does.
        """
        self._shell.fences.tell_all(claimed)
        for shard, epoch in claimed.items():
            for session_ids in await self._found(shard):
                await self._restore(shard, epoch, session_ids)
            if self._shell.shards.holds(shard, epoch):
                self._shell.shards.serve([shard])
                log.info("shard taken over", shard=shard, epoch=epoch, sessions=len(self._sessions(shard)))

    async def hand_over(self, shard: int) -> None:
        """Stops serving a shard, finishes the writes under way in it, and drops it."""
        shards, epoch = self._shell.shards, self._shell.shards.held.get(shard)
        shards.stop_serving([shard])
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._shell.flushed(self._sessions(shard))
        except TimeoutError:
            log.warning("shard handed over before all was stored; the next start finds it", shard=shard)
        if epoch is not None and shards.holds(shard, epoch):
            self.drop(shard)

    def drop(self, shard: int) -> None:
        """Drops a shard as it stands: what was not stored is found again by its next manager."""
        self._shell.shards.drop([shard])
        self._shell.fences.forget(shard)
        for session_id in self._sessions(shard):
            self._shell.apply(SessionReleased(session_id))
            self._shell.released(session_id)

    def peers_changed(self) -> None:
        """Tells the engines where all managers are."""
        for link in self._shell.links.joined():
            link.send(self._shell.registered())

    async def _found(self, shard: int) -> list[list[str]]:
        since_ms = clock.now_ms() - RECENT_MS
        return await self._patiently(lambda: self._shell.store.find_live([shard], since_ms), shard)

    async def _restore(self, shard: int, epoch: int, session_ids: Sequence[str]) -> None:
        for record in await self._patiently(lambda: self._read(session_ids), shard):
            # A large session keeps the event loop for a while: the lease has to last that long.
            if len(record.calls) >= LARGE_CALLS:
                await self._shell.keeper.renewed()
            await asyncio.sleep(0)
            if self._shell.shards.holds(shard, epoch):
                self._take_up(record)

    async def _read(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        """Sessions, without those whose rows this version can't make out."""
        try:
            return await self._shell.store.load(session_ids)
        except (Fault, *TROUBLE):
            raise
        except Exception:
            if len(session_ids) == 1:
                log.exception("session left out: its rows can't be read", session_id=session_ids[0])
                return []
        return [record for session_id in session_ids for record in await self._read([session_id])]

    def _take_up(self, record: SessionRecord) -> None:
        """One session's trouble must not be all the others', on this manager and on the next."""
        session_id = record.session.id
        try:
            event = restored(record)
            self._shell.spans.restored(record.session, record.calls)
            self._shell.tellings.restored(record)
            self._shell.apply(event)
        except Exception:
            log.exception("session left out: it can't be taken up", session_id=session_id)
            if session_id in self._shell.machine.state.sessions:
                self._shell.apply(SessionReleased(session_id))
            self._shell.released(session_id)

    async def _patiently(self, read: Callable[[], Awaitable[list[T]]], shard: int) -> list[T]:
        while True:
            try:
                return await read()
            except Fault as fault:
                log.warning("shard not loaded yet", shard=shard, reason=fault.message)
            except TROUBLE:
                log.exception("shard not loaded yet", shard=shard)
            await asyncio.sleep(RETRY_S)

    def _sessions(self, shard: int) -> list[str]:
        return [name for name in self._shell.machine.state.sessions if shard_of(name) == shard]
