"""Leases that one manager can be cut off from, while the rest of its store goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parrot_manager.store.leases import Leases, Member, Standing
from parrot_manager.store.memory import MemoryStore
from parrot_runtime import errors
from parrot_runtime.errors import Fault


class CutLeases(Leases):
    """Passes everything on, unless it is `away`."""

    def __init__(self, inner: Leases) -> None:
        self.away = False
        self._inner = inner

    async def join(self, me: Member, shards: Collection[int], lease_s: float) -> Standing:
        return await self._reached().join(me, shards, lease_s)

    async def renew(self, me: Member, lease_s: float, *, leaving: bool = False) -> Standing:
        return await self._reached().renew(me, lease_s, leaving=leaving)

    async def claim(self, me: Member, shards: Collection[int]) -> dict[int, int]:
        return await self._reached().claim(me, shards)

    async def release(self, me: Member, held: Mapping[int, int]) -> None:
        await self._reached().release(me, held)

    async def leave(self, me: Member) -> None:
        await self._reached().leave(me)

    def _reached(self) -> Leases:
        if self.away:
            raise Fault(errors.UNAVAILABLE, "away")
        return self._inner


class CutStore(MemoryStore):
    """One manager's way to a store that it shares with others."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        vars(self).update(vars(shared))
        self.cut = CutLeases(shared.leases)

    @property
    def leases(self) -> CutLeases:
        return self.cut
