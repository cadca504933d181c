"""Which managers live, and which shards each of them holds.

A manager's lease is a time by the store's clock, which the manager moves on. A live manager may
claim a shard whose holder's lease is over, or that nobody holds; each claim gives the shard a new
epoch, and from then on the store refuses writes under an older one. So a lease that is misjudged
costs time and never truth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from parrot_runtime import errors
from parrot_runtime.errors import Fault


@dataclass(frozen=True, slots=True)
class Member:
    """A manager as it joins. `incarnation` tells its process from any other that runs under its id."""

    id: str
    incarnation: str
    address: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A manager whose lease runs.

    Attributes:
        leaving: it is about to stop, and takes no shards.
        expires_in_s: what is left of its lease.
    """

    id: str
    address: str
    leaving: bool
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class Holding:
    """Who holds a shard, or held it last; empty: nobody."""

    shard: int
    epoch: int
    manager_id: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Who is there and holds what, at one moment. Peers come by id, holdings by shard."""

    peers: tuple[Peer, ...]
    holdings: tuple[Holding, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the managers are."""
        return tuple(peer.address for peer in self.peers)

    def share_of(self, manager_id: str) -> int:
        """How many shards a manager is to have: as many as any other, the first ones one more."""
        staying = [peer.id for peer in self.peers if not peer.leaving]
        if manager_id not in staying:
            return 0
        least, more = divmod(len(self.holdings), len(staying))
        return least + (staying.index(manager_id) < more)

    def vacant(self) -> list[int]:
        """The shards nobody alive holds."""
        living = {peer.id for peer in self.peers}
        return [holding.shard for holding in self.holdings if holding.manager_id not in living]

    def left_behind(self, manager_id: str) -> set[int]:
        """The shards that others held who are gone without having given them back."""
        living = {manager_id, "", *(peer.id for peer in self.peers)}
        return {holding.shard for holding in self.holdings if holding.manager_id not in living}

    def of(self, manager_id: str) -> dict[int, int]:
        """The shards of a manager, with their epochs."""
        return {h.shard: h.epoch for h in self.holdings if h.manager_id == manager_id}


class Leases(ABC):
    """Every method raises `Fault` (`unavailable`) when the store can't be reached in time."""

    @abstractmethod
    async def join(self, me: Member, shards: Collection[int], lease_s: float) -> Standing:
        """Begins a lease. Whoever ran under the same id is replaced; shards not heard of are added."""

    @abstractmethod
    async def renew(self, me: Member, lease_s: float, *, leaving: bool = False) -> Standing:
        """Moves the lease's end to `lease_s` from now.

        Raises:
            Fault: `invalid_request`, when another process took the id over.
        """

    @abstractmethod
    async def claim(self, me: Member, shards: Collection[int]) -> dict[int, int]:
        """Takes those of the shards that nobody else alive holds; returns them with their new epochs.

        A manager's own shards get new epochs too: name only those it does not serve. None are given
        to one whose lease is over.
        """

    @abstractmethod
    async def release(self, me: Member, held: Mapping[int, int]) -> None:
        """Gives shards up that are held under these epochs."""

    @abstractmethod
    async def leave(self, me: Member) -> None:
        """Ends the lease, and with it the hold on every shard."""


def replaced(me: Member) -> Fault:
    """What a manager is told whose id another process took over."""
    return Fault(
        errors.INVALID_REQUEST,
        f"another manager runs under the id {me.id}; give each its own --manager-id",
        field="manager_id",
    )
