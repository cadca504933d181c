"""A manager's lease and its shards: as `parrot_manager.leases`, on the simulated clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parrot_manager.restoring import restored
from parrot_manager.store.base import SessionRecord
from parrot_manager.store.leases import Member, Standing
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from tests.simulation.kernel import Signal, sleep

if TYPE_CHECKING:
    from tests.simulation.manager import SimManager

SHARDS = range(3)
LEASE_MS = 3_000
RENEW_MS = 1_000
HUNGRY_MS = 100
RECENT_MS = 120_000
RETRY_MS = 250


class Holder:
    """Renews a lease for ever, takes what nobody holds, and gives what is beyond its share."""

    def __init__(self, manager: SimManager, incarnation: str) -> None:
        self._manager = manager
        self._me = Member(manager.name, incarnation, manager.name)
        self._leases = manager.store.rows.leases
        self._end_ms = 0
        self._claims_from_ms = 0
        self._moving: dict[int, None] = {}
        self._looked = Signal()

    @property
    def valid(self) -> bool:
        """Whether the lease runs, by the own clock."""
        return self._manager.clock.now_ms < self._end_ms

    async def until_valid(self) -> None:
        """Returns once the lease runs."""
        while not self.valid:
            await self._looked.wait()

    async def run(self) -> None:
        """Keeps the lease."""
        joined = False
        while True:
            try:
                await self._look(joined=joined)
                joined = True
            except Fault as fault:
                if fault.kind is errors.INVALID_REQUEST:
                    # Its id was taken over, or the last words of its former life came late.
                    self._manager.restart()
                    return
            await sleep(self._until_next_look_ms() if joined else HUNGRY_MS)

    def _until_next_look_ms(self) -> int:
        """Sooner when a peer's lease is about to end: who lives renews long before that."""
        standing = self._manager.shards.standing
        if self._wants(standing) > 0:
            return HUNGRY_MS
        others = [peer.expires_in_s for peer in standing.peers if peer.id != self._me.id]
        return max(10, min([RENEW_MS, *(round(left * 1000) + 10 for left in others)]))

    def _wants(self, standing: Standing) -> int:
        held = self._manager.shards.held.keys() | self._moving
        return standing.share_of(self._me.id) - len(held)

    async def _look(self, *, joined: bool) -> None:
        sent_ms = self._manager.clock.now_ms
        if joined:
            standing = await self._manager.store.ask(lambda: self._leases.renew(self._me, LEASE_MS / 1000))
        else:
            standing = await self._manager.store.ask(
                lambda: self._leases.join(self._me, SHARDS, LEASE_MS / 1000)
            )
        self._renewed(standing, sent_ms)
        self._drop_lost(standing)
        self._give_surplus(standing)
        self._give_unserved(standing)
        await self._claim(standing)

    def _renewed(self, standing: Standing, sent_ms: int) -> None:
        if self._end_ms and sent_ms > self._end_ms:
            self._claims_from_ms = self._manager.clock.now_ms + LEASE_MS
        self._end_ms = sent_ms + LEASE_MS
        self._manager.shards.standing = standing
        self._looked.notify()

    def _drop_lost(self, standing: Standing) -> None:
        mine = standing.of(self._me.id)
        for shard, epoch in list(self._manager.shards.held.items()):
            if mine.get(shard) != epoch:
                self._manager.drop(shard)

    def _give_surplus(self, standing: Standing) -> None:
        held = self._manager.shards.held
        keeps = sorted(held.keys() - self._moving)
        for shard in keeps[standing.share_of(self._me.id) :]:
            self._moving[shard] = None
            self._manager.process.spawn(self._hand_over, shard, held[shard])

    def _give_unserved(self, standing: Standing) -> None:
        """Shards that are this manager's in the store alone, beyond its share."""
        served = self._manager.shards.held.keys() | self._moving
        unserved = [h for h in standing.holdings if h.manager_id == self._me.id and h.shard not in served]
        for holding in unserved[max(0, self._wants(standing)) :]:
            self._moving[holding.shard] = None
            self._manager.process.spawn(self._release, holding.shard, holding.epoch)

    async def _claim(self, standing: Standing) -> None:
        manager, wants = self._manager, self._wants(standing)
        if wants <= 0:
            return
        own = standing.of(self._me.id).keys() - manager.shards.held.keys()
        free = set(standing.vacant()) if manager.clock.now_ms >= self._claims_from_ms else set()
        wanted = sorted((free | own) - self._moving.keys())[:wants]
        if wanted:
            claimed = await manager.store.ask(lambda: self._leases.claim(self._me, wanted))
            manager.shards.hold(claimed)
            self._moving.update(dict.fromkeys(claimed))
            manager.process.spawn(self._take_over, claimed)

    async def _take_over(self, claimed: dict[int, int]) -> None:
        manager = self._manager
        manager.record.note(manager.name, "takes shards", claimed)
        records = await self._load(claimed)
        await manager.fences.tell_all(claimed)
        for found in records:
            shard = shard_of(found.session.id)
            if manager.shards.holds(shard, claimed[shard]):
                manager.audit.restored()
                manager.tellings.restored(found)
                manager.apply(restored(found))
        manager.shards.serve(shard for shard in claimed if manager.shards.holds(shard, claimed[shard]))
        for shard in claimed:
            self._moving.pop(shard, None)

    async def _load(self, claimed: dict[int, int]) -> list[SessionRecord]:
        while True:
            try:
                return await self._manager.store.load(claimed, self._manager.clock.now_ms - RECENT_MS)
            except Fault:
                await sleep(RETRY_MS)

    async def _hand_over(self, shard: int, epoch: int) -> None:
        await self._manager.hand_over(shard)
        await self._release(shard, epoch)

    async def _release(self, shard: int, epoch: int) -> None:
        while True:
            try:
                await self._manager.store.ask(lambda: self._leases.release(self._me, {shard: epoch}))
                break
            except Fault:
                await sleep(HUNGRY_MS)
        self._moving.pop(shard, None)
