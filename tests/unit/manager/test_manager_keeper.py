"""Managers share the shards: each its part, none twice, and none without a lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.cut_leases import CutLeases
from tests.support.eventually import eventually

from parrot_manager.leases import Keeper
from parrot_manager.store.leases import Member
from parrot_manager.store.memory import MemoryStore
from parrot_manager.tasks import Tasks
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS

pytestmark = pytest.mark.anyio

LEASE_S = 0.4
RENEW_S = 0.1


@dataclass
class Manager:
    """A keeper with a host that does what it is told, and writes it down."""

    leases: CutLeases
    keeper: Keeper = field(init=False)
    log: list[str] = field(default_factory=list)
    may_hand_over: asyncio.Event = field(default_factory=asyncio.Event)
    peers_seen: int = 0

    async def take_over(self, claimed: Mapping[int, int]) -> None:
        self.log.append(f"take {len(claimed)}")
        self.keeper.shards.serve(claimed)

    async def hand_over(self, shard: int) -> None:
        self.keeper.shards.stop_serving([shard])
        await self.may_hand_over.wait()
        self.log.append("hand over")
        self.keeper.shards.drop([shard])

    def drop(self, shard: int) -> None:
        self.log.append("drop")
        self.keeper.shards.drop([shard])

    def peers_changed(self) -> None:
        self.peers_seen = len(self.keeper.shards.peers)

    @property
    def served(self) -> int:
        """How many shards it serves."""
        return len(self.keeper.shards.served)


@dataclass
class House:
    """Managers over one store."""

    store: MemoryStore
    managers: AsyncExitStack

    async def start(self, name: str, *, quick: bool = True, incarnation: str = "") -> Manager:
        made = await self.managers.enter_async_context(_running(self.store, name, incarnation))
        if quick:
            made.may_hand_over.set()
        return made


@asynccontextmanager
async def _running(store: MemoryStore, name: str, incarnation: str) -> AsyncIterator[Manager]:
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group)
        made = Manager(CutLeases(store.leases))
        me = Member(name, incarnation or f"of {name}", f"{name}:1")
        made.keeper = Keeper(made.leases, me, made, tasks, lease_s=LEASE_S, renew_s=RENEW_S)
        await made.keeper.start()
        yield made
        tasks.cancel_all()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Nobody there yet."""
    async with AsyncExitStack() as stack:
        yield House(MemoryStore(), stack)


def split(*parts: int) -> Callable[[list[Manager]], Callable[[], bool]]:
    """Whether managers serve so many shards each."""
    return lambda managers: lambda: sorted(each.served for each in managers) == sorted(parts)


def check_no_shard_is_served_twice(managers: list[Manager]) -> None:
    """Fails when one is."""
    served = [shard for each in managers for shard in each.keeper.shards.served]
    assert len(served) == len(set(served))


async def test_the_first_manager_serves_all_as_soon_as_it_starts(house: House) -> None:
    first = await house.start("m-1")
    assert first.served == SHARDS
    assert first.keeper.valid


async def test_managers_share_evenly_and_none_serves_what_another_does(house: House) -> None:
    managers = [await house.start("m-1")]
    for parts in ((8, 8), (6, 5, 5)):
        managers.append(await house.start(f"m-{len(managers) + 1}"))
        async with asyncio.timeout(10):
            while not split(*parts)(managers)():
                check_no_shard_is_served_twice(managers)
                await asyncio.sleep(0)
    await eventually(lambda: all(each.peers_seen == 3 for each in managers))
    assert [log for each in managers for log in each.log if log == "drop"] == []


async def test_a_lease_is_renewed_when_that_is_asked_for(house: House) -> None:
    first = await house.start("m-1")
    for _ in range(5):
        before = first.keeper.shards.standing
        await first.keeper.renewed()
        assert first.keeper.shards.standing is not before


async def test_a_shard_is_released_only_when_it_was_handed_over(house: House) -> None:
    first = await house.start("m-1", quick=False)
    second = await house.start("m-2")
    await eventually(lambda: first.served == 8)
    await second.keeper.changed(5)
    assert (second.served, len(first.keeper.shards.held)) == (0, 16)
    first.may_hand_over.set()
    await eventually(lambda: (first.served, second.served) == (8, 8))


async def test_shards_of_one_that_can_not_renew_go_to_the_others(house: House) -> None:
    first, second = await house.start("m-1"), await house.start("m-2")
    await eventually(split(8, 8)([first, second]))
    first.leases.away = True
    await eventually(lambda: second.served == SHARDS)
    assert not first.keeper.valid
    first.leases.away = False
    await eventually(split(8, 8)([first, second]))
    assert first.log.count("drop") == 8
    assert first.keeper.valid


async def test_an_outage_for_all_moves_nothing(house: House) -> None:
    managers = [await house.start("m-1"), await house.start("m-2")]
    await eventually(split(8, 8)(managers))
    before = [dict(each.keeper.shards.held) for each in managers]
    for each in managers:
        each.leases.away = True
    await eventually(lambda: not any(each.keeper.valid for each in managers))
    managers[0].leases.away = False
    await managers[0].keeper.until_valid()
    managers[1].leases.away = False
    await managers[1].keeper.until_valid()
    for _ in range(3):
        await managers[0].keeper.changed(5)
    assert [dict(each.keeper.shards.held) for each in managers] == before
    assert "drop" not in managers[0].log + managers[1].log


async def test_who_leaves_hands_all_over_and_goes_when_that_is_done(house: House) -> None:
    first, second = await house.start("m-1", quick=False), await house.start("m-2")
    first.may_hand_over.set()
    await eventually(split(8, 8)([first, second]))
    first.may_hand_over.clear()
    leaving = asyncio.create_task(first.keeper.leave())
    await eventually(lambda: first.served == 0)
    # Nothing is given that is not done with; and the other, who waits for it, claims nothing.
    await second.keeper.changed(5)
    assert (second.served, leaving.done()) == (8, False)
    first.may_hand_over.set()
    await leaving
    assert first.log.count("hand over") == 16
    await eventually(lambda: second.served == SHARDS, within_s=LEASE_S)
    assert second.log.count("drop") == 0


async def test_who_leaves_serves_until_the_others_look_out_for_it(house: House) -> None:
    first, second = await house.start("m-1"), await house.start("m-2")
    await eventually(split(8, 8)([first, second]))
    leaving = asyncio.create_task(first.keeper.leave())

    def told() -> bool:
        return any(peer.leaving for peer in second.keeper.shards.peers)

    while not told():
        assert first.served == 8
        await asyncio.sleep(0)
    await leaving
    await eventually(lambda: second.served == SHARDS, within_s=LEASE_S)


async def test_a_restarted_one_goes_on_at_once_and_the_older_ends(house: House) -> None:
    started = asyncio.Event()

    async def older() -> None:
        async with _running(house.store, "m-1", "older") as made:
            assert made.served == SHARDS
            started.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(older())
    await started.wait()
    again = await house.start("m-1", incarnation="later")
    assert again.served == SHARDS
    with pytest.raises(BaseExceptionGroup) as ended:
        await asyncio.wait_for(running, 10)
    assert ended.group_contains(Fault, match="--manager-id")
    assert again.served == SHARDS


async def test_a_restarted_one_gives_up_what_is_not_its_share_any_more(house: House) -> None:
    leases = house.store.leases
    before = Member("m-1", "before", "m-1:1")
    await leases.join(before, range(SHARDS), 60)
    await leases.claim(before, range(SHARDS))
    await leases.join(Member("m-2", "of m-2", "m-2:1"), range(SHARDS), 60)
    again = await house.start("m-1")
    assert again.served == SHARDS // 2
    second = await house.start("m-2")
    await eventually(lambda: (again.served, second.served) == (8, 8))
