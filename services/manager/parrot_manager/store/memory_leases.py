"""Leases and shards in memory, by a clock that is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from parrot_manager.store.leases import Holding, Leases, Member, Peer, Standing, replaced


@dataclass(frozen=True, slots=True)
class _Lease:
    member: Member
    leaving: bool
    end_s: float


class MemoryLeases(Leases):
    """Keeps everything in dictionaries; nothing awaits."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._managers: dict[str, _Lease] = {}
        self._shards: dict[int, Holding] = {}

    def epoch_of(self, shard: int) -> int:
        """The epoch under which a shard may be written; 0: it was never claimed."""
        holding = self._shards.get(shard)
        return holding.epoch if holding is not None else 0

    async def join(self, me: Member, shards: Collection[int], lease_s: float) -> Standing:
        for shard in shards:
            self._shards.setdefault(shard, Holding(shard, 0, ""))
        self._managers[me.id] = _Lease(me, leaving=False, end_s=self._clock() + lease_s)
        return self._standing()

    async def renew(self, me: Member, lease_s: float, *, leaving: bool = False) -> Standing:
        known = self._managers.get(me.id)
        if known is not None and known.member.incarnation != me.incarnation:
            raise replaced(me)
        self._managers[me.id] = _Lease(me, leaving, self._clock() + lease_s)
        return self._standing()

    async def claim(self, me: Member, shards: Collection[int]) -> dict[int, int]:
        if not self._is_live(me.id) or self._managers[me.id].member != me:
            return {}
        for shard in shards:
            holding = self._shards[shard]
            if holding.manager_id == me.id or not self._is_live(holding.manager_id):
                self._shards[shard] = Holding(shard, holding.epoch + 1, me.id)
        mine = self._standing().of(me.id)
        return {shard: mine[shard] for shard in sorted(shards) if shard in mine}

    async def release(self, me: Member, held: Mapping[int, int]) -> None:
        for shard, epoch in held.items():
            holding = self._shards[shard]
            if (holding.manager_id, holding.epoch) == (me.id, epoch):
                self._shards[shard] = replace(holding, manager_id="")

    async def leave(self, me: Member) -> None:
        known = self._managers.get(me.id)
        if known is not None and known.member.incarnation == me.incarnation:
            await self.release(me, self._standing().of(me.id))
            del self._managers[me.id]

    def _is_live(self, manager_id: str) -> bool:
        lease = self._managers.get(manager_id)
        return lease is not None and lease.end_s > self._clock()

    def _standing(self) -> Standing:
        now_s = self._clock()
        peers = [
            Peer(name, lease.member.address, lease.leaving, lease.end_s - now_s)
            for name, lease in sorted(self._managers.items())
            if lease.end_s > now_s
        ]
        return Standing(tuple(peers), tuple(self._shards[shard] for shard in sorted(self._shards)))
