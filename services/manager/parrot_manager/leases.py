"""Keeps this manager's lease, and its share of the shards.

All that is asked of the leases is asked here, one thing after another. Taking a shard over and
handing one over take their time beside it, so that neither holds up the lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, Protocol

import structlog

from parrot_manager.shards import Shards
from parrot_manager.store.leases import Leases, Member, Standing
from parrot_manager.store.retry import TROUBLE
from parrot_manager.tasks import Tasks
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS

HUNGRY_S: Final = 0.1
"""How long to the next look for one that has less than its share: others are about to give."""
SLACK_S: Final = 0.01
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger()


def now_s() -> float:
    """The time since this machine started, sleep included: the store's clock goes on meanwhile."""
    return time.clock_gettime(_CLOCK)


class Host(Protocol):
    """Whoever works on the shards."""

    async def take_over(self, claimed: Mapping[int, int]) -> None:
        """Takes up what the store has of shards, and serves them."""

    async def hand_over(self, shard: int) -> None:
        """Stops serving a shard, finishes what is under way in it, and drops it."""

    def drop(self, shard: int) -> None:
        """Drops a shard that is lost, as it stands."""

    def peers_changed(self) -> None:
        """Managers came or went."""


class Keeper:
    """Renews a lease for ever, and claims and gives shards so that every live manager has its share.

    The lease counts from the moment before each renewal was sent, by this process's own clock: it is
    over here before it is over in the store. What the manager does to others is held back then
    (`valid`), until the lease is renewed or the shards are known to be lost.

    Attributes:
        takeovers: how many shards were claimed that a manager which is gone had not given back.
    """

    def __init__(
        self, leases: Leases, me: Member, host: Host, tasks: Tasks, *, lease_s: float, renew_s: float
    ) -> None:
        self.shards = Shards()
        self.takeovers = 0
        self._leases = leases
        self._me = me
        self._host = host
        self._tasks = tasks
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._end_s = 0.0
        self._claims_from_s = 0.0
        self._leaving = False
        self._left = False
        self._moving: set[int] = set()
        self._given: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether the lease runs, by the own clock."""
        return now_s() < self._end_s

    @property
    def has_peers(self) -> bool:
        """Whether another manager is there to serve the shards."""
        return any(peer.id != self._me.id and not peer.leaving for peer in self.shards.peers)

    async def until_valid(self) -> None:
        """Returns once the lease runs."""
        while not self.valid:
            await self._looked.wait()

    async def renewed(self) -> None:
        """Renews the lease now, for what will keep the event loop; returns when that is done."""
        looked = self._looked
        self._wake.set()
        await looked.wait()

    async def changed(self, timeout_s: float) -> None:
        """Returns after the next look at the leases, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._looked.wait()
        except TimeoutError:
            return

    async def start(self) -> None:
        """Begins the lease; returns once the first shards are served.

        Raises:
            Fault: `unavailable`, when the store can't be reached.
        """
        sent_s = now_s()
        standing = await self._leases.join(self._me, range(SHARDS), self._lease_s)
        self._renewed(standing, sent_s)
        claimed = await self._claim(standing)
        self._moving.update(claimed)
        self._tasks.spawn(self._run(), "leases")
        await self._take_over(claimed)

    async def leave(self) -> None:
        """Hands all shards over and ends the lease.

        Raises:
            Fault: `unavailable`, when the store can't be reached; the lease ends by itself then.
        """
        self._leaving = True
        while not self._is_told():
            self._wake.set()
            await self._looked.wait()
        if self.has_peers:
            # They see it at their next look, and from then on wait for the shards.
            await asyncio.sleep(self._renew_s)
        async with asyncio.TaskGroup() as group:
            for shard, epoch in list(self.shards.held.items()):
                group.create_task(self._hand_over(shard, epoch))
        self._left = True
        await self._leases.leave(self._me)

    def _is_told(self) -> bool:
        return any(peer.id == self._me.id and peer.leaving for peer in self.shards.peers)

    async def _run(self) -> None:
        while not self._left:
            await self._pause()
            try:
                await self._look()
            except Fault as fault:
                if fault.kind is not errors.UNAVAILABLE:
                    raise
                log.warning("lease not renewed", valid=self.valid, reason=fault.message)
            except TROUBLE:
                log.exception("lease not renewed", valid=self.valid)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._until_next_look_s()):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _until_next_look_s(self) -> float:
        """Sooner when a peer's lease is about to end: who lives renews long before that."""
        if self._wants(self.shards.standing) > 0 and not self._leaving:
            return HUNGRY_S
        others = [peer.expires_in_s for peer in self.shards.peers if peer.id != self._me.id]
        return max(SLACK_S, min([self._renew_s, *(left + SLACK_S for left in others)]))

    async def _look(self) -> None:
        if self._given:
            given, self._given = self._given, {}
            await self._release(given)
        sent_s = now_s()
        standing = await self._leases.renew(self._me, self._lease_s, leaving=self._leaving)
        self._renewed(standing, sent_s)
        self._drop_lost(standing)
        self._give_surplus(standing)
        self._give_unserved(standing)
        claimed = await self._claim(standing)
        if claimed:
            self._moving.update(claimed)
            self._tasks.spawn(self._take_over(claimed), "take over")

    def _renewed(self, standing: Standing, sent_s: float) -> None:
        if self._end_s and sent_s > self._end_s:
            # It could not be renewed, and so may the others' not: they get time to.
            self._claims_from_s = now_s() + self._lease_s
        self._end_s = sent_s + self._lease_s
        before, self.shards.standing = self.shards.standing.addresses, standing
        if standing.addresses != before:
            self._host.peers_changed()
        self._looked.set()
        self._looked = asyncio.Event()

    def _drop_lost(self, standing: Standing) -> None:
        mine = standing.of(self._me.id)
        for shard, epoch in list(self.shards.held.items()):
            if mine.get(shard) != epoch:
                log.warning("shard lost", shard=shard, epoch=epoch)
                self._host.drop(shard)

    def _wants(self, standing: Standing) -> int:
        """How many shards are lacking to this manager's share."""
        held = self.shards.held.keys() | self._moving
        return standing.share_of(self._me.id) - len(held)

    def _give_surplus(self, standing: Standing) -> None:
        if self._leaving:
            # That is `leave`'s to do, when the others are ready.
            return
        keeps = sorted(self.shards.held.keys() - self._moving)
        for shard in keeps[standing.share_of(self._me.id) :]:
            self._moving.add(shard)
            self._tasks.spawn(self._hand_over(shard, self.shards.held[shard]), f"hand over {shard}")

    def _give_unserved(self, standing: Standing) -> None:
        """Gives up what only the store says it holds, such as from an earlier life, beyond its share."""
        served = self.shards.held.keys() | self._moving
        unserved = [h for h in standing.holdings if h.manager_id == self._me.id and h.shard not in served]
        for holding in unserved[max(0, self._wants(standing)) :]:
            self._given[holding.shard] = holding.epoch

    async def _claim(self, standing: Standing) -> dict[int, int]:
        wants = self._wants(standing)
        if self._leaving or wants <= 0:
            return {}
        own = standing.of(self._me.id).keys() - self.shards.held.keys()
        free = set(standing.vacant()) if now_s() >= self._claims_from_s else set()
        wanted = sorted((free | own) - self._moving)[:wants]
        claimed = await self._leases.claim(self._me, wanted) if wanted else {}
        self.takeovers += len(claimed.keys() & standing.left_behind(self._me.id))
        self.shards.hold(claimed)
        return claimed

    async def _take_over(self, claimed: Mapping[int, int]) -> None:
        await self._host.take_over(claimed)
        self._moving.difference_update(claimed)

    async def _hand_over(self, shard: int, epoch: int) -> None:
        await self._host.hand_over(shard)
        self._given[shard] = epoch
        self._wake.set()

    async def _release(self, given: Mapping[int, int]) -> None:
        try:
            await self._leases.release(self._me, given)
        except Fault:
            self._given = {**given, **self._given}
            raise
        self._moving.difference_update(given)
