"""The store in memory: for tests and simulations. Lives as long as the object, manager or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from parrot_manager.core.commands import Changes
from parrot_manager.core.events import CallsAccepted
from parrot_manager.core.model import Session, SessionState
from parrot_manager.core.reservations import taken_by
from parrot_manager.core.tenants import Movement
from parrot_manager.store.base import SessionRecord, Store, refused
from parrot_manager.store.kept import KeptSession
from parrot_manager.store.leases import Leases
from parrot_manager.store.listing import ListedSession, Place
from parrot_manager.store.memory_leases import MemoryLeases
from parrot_manager.store.memory_tenants import MemoryTenants, holding, moved
from parrot_runtime.ids import shard_of


class MemoryStore(Store):
    """Keeps everything in dictionaries; writes are atomic because nothing awaits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions: dict[str, KeptSession] = {}
        self._leases = MemoryLeases(clock)
        self._tenants = MemoryTenants(clock, self._sessions)

    @property
    def leases(self) -> Leases:
        return self._leases

    @property
    def tenants(self) -> MemoryTenants:
        return self._tenants

    async def insert_session(self, session: Session, epoch: int) -> None:
        self._check(session.id, epoch)
        if session.id not in self._sessions:
            self._tenants.take(session.tenant, Movement(sessions=1))
            self._sessions[session.id] = KeptSession(session)

    async def insert_session_with_calls(self, session: Session, accepted: CallsAccepted, epoch: int) -> bool:
        self._check(session.id, epoch)
        if session.id in self._sessions:
            return False
        self._tenants.take(session.tenant, taken_by(accepted, opened=1))
        kept = self._sessions[session.id] = KeptSession(session)
        kept.add(accepted)
        return True

    async def insert_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        self._check(accepted.session_id, epoch)
        kept = self._sessions[accepted.session_id]
        if not kept.has(accepted):
            self._tenants.take(kept.session.tenant, taken_by(accepted))
            kept.add(accepted)

    async def remove_calls(self, accepted: CallsAccepted, epoch: int) -> None:
        self._check(accepted.session_id, epoch)
        kept = self._sessions.get(accepted.session_id)
        if kept is None:
            return
        if kept.has(accepted):
            self._tenants.move(kept.session.tenant, taken_by(accepted).reversed)
        kept.remove(accepted)

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        self._check(session_id, epoch)
        kept = self._sessions[session_id]
        if self._tenants.has_limits(kept.session.tenant):
            self._tenants.move(kept.session.tenant, moved(kept, lambda: kept.change(changes)))
        else:
            kept.change(changes)

    async def find_live(self, shards: Collection[int], ended_after_ms: int) -> list[list[str]]:
        wanted = [
            kept.session
            for kept in self._sessions.values()
            if shard_of(kept.session.id) in shards and kept.is_live(ended_after_ms)
        ]
        wanted.sort(key=lambda session: (session.created_ms, session.id))
        return [[session.id] for session in wanted]

    async def load(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        return [self._sessions[session_id].record(live=True) for session_id in session_ids]

    async def read_session(self, session_id: str) -> Session | None:
        kept = self._sessions.get(session_id)
        return kept.session if kept is not None else None

    async def load_session(self, tenant: str, session_id: str) -> SessionRecord | None:
        kept = self._sessions.get(session_id)
        return kept.record(live=False) if kept is not None and kept.session.tenant == tenant else None

    async def list_sessions(
        self, tenant: str, state: SessionState | None, after: Place | None, limit: int
    ) -> list[ListedSession]:
        found = [
            kept.listed()
            for kept in self._sessions.values()
            if kept.session.tenant == tenant and state in {None, kept.session.state}
        ]
        found.sort(key=_place, reverse=True)
        return [one for one in found if after is None or _place(one) < (after.created_ms, after.session_id)][
            :limit
        ]

    async def read_value(self, session_id: str, variable_id: str) -> bytes | None:
        kept = self._sessions.get(session_id)
        return kept.values.get(variable_id) if kept is not None else None

    async def read_values(self, session_id: str, variable_ids: Sequence[str]) -> dict[str, bytes]:
        kept = self._sessions.get(session_id)
        values = kept.values if kept is not None else {}
        return {name: values[name] for name in variable_ids if name in values}

    async def unpurged(self, shard: int, ended_before_ms: int, limit: int) -> list[tuple[str, str]]:
        found = self._ended(shard, ended_before_ms, purged=False)[:limit]
        return [(session.tenant, session.id) for session in found]

    async def mark_purged(self, shard: int, session_ids: Sequence[str], epoch: int) -> None:
        self._check_shard(shard, epoch)
        for session_id in session_ids:
            self._sessions[session_id].purged = True

    async def delete_session(self, tenant: str, session_id: str, epoch: int) -> None:
        self._check(session_id, epoch)
        if session_id in self._sessions:
            self._delete(session_id)

    async def delete_ended(self, shard: int, ended_before_ms: int, limit: int, epoch: int) -> int:
        self._check_shard(shard, epoch)
        found = self._ended(shard, ended_before_ms, purged=True)[:limit]
        for session in found:
            self._delete(session.id)
        return len(found)

    def _delete(self, session_id: str) -> None:
        kept = self._sessions.pop(session_id)
        self._tenants.move(kept.session.tenant, Movement(stored_bytes=-holding(kept).stored_bytes))

    def _ended(self, shard: int, before_ms: int, *, purged: bool) -> list[Session]:
        ended = [
            kept.session
            for kept in self._sessions.values()
            if shard_of(kept.session.id) == shard
            and 0 < kept.session.ended_ms < before_ms
            and kept.purged == purged
        ]
        return sorted(ended, key=lambda session: session.ended_ms)

    def _check(self, session_id: str, epoch: int) -> None:
        if self._leases.epoch_of(shard_of(session_id)) != epoch:
            raise refused(session_id)

    def _check_shard(self, shard: int, epoch: int) -> None:
        if self._leases.epoch_of(shard) != epoch:
            raise refused()


def _place(listed: ListedSession) -> tuple[int, str]:
    return listed.session.created_ms, listed.session.id
