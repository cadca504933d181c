"""Engines are fenced for those who may: once a loss, in shards that are held, under a lease that runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.support.eventually import eventually

from parrot_manager.core.model import Engine
from parrot_manager.engine_fences import EngineFences
from parrot_manager.links import EngineLink, Links
from parrot_manager.shards import Shards
from parrot_manager.tasks import Tasks
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.fences import Fences, Mark

pytestmark = pytest.mark.anyio

EPOCHS = {0: 5, 1: 6, 2: 7}


class SlowFences(Fences):
    """A bus that answers when it may."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.fenced: list[int] = []

    async def epochs(self, engine_id: str, shards: Iterable[int]) -> dict[int, Mark]:
        await self.there.wait()
        return {shard: Mark(engine_id, shard, 10 + shard, 20 + shard) for shard in shards}

    async def fence(
        self, engine_id: str, shards: Iterable[int], due: Callable[[int], bool] = lambda shard: True
    ) -> None:
        await self.there.wait()
        self.fenced += [shard for shard in sorted(shards) if due(shard)]


@dataclass
class Bench:
    """Fences of a manager that holds three shards."""

    tasks: Tasks
    bus: SlowFences = field(default_factory=SlowFences)
    links: Links = field(default_factory=Links)
    shards: Shards = field(default_factory=Shards)
    lease: asyncio.Event = field(default_factory=asyncio.Event)
    fences: EngineFences = field(init=False)

    def __post_init__(self) -> None:
        self.shards.hold(EPOCHS)
        self.lease.set()
        self.fences = EngineFences(
            self.bus, self.links, self.shards, self.tasks, valid=self.lease.is_set, allowed=self.allowed
        )

    async def allowed(self) -> None:
        await self.lease.wait()

    def attached(self) -> EngineLink:
        link = EngineLink(Engine("e", 1, "m", 4), joined=True)
        self.links.add(link)
        return link


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """The fences with their tasks."""
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group)
        yield Bench(tasks)
        tasks.cancel_all()


def said(link: EngineLink) -> list[str | None]:
    """The commands an engine is sent, in order."""
    kinds: list[str | None] = []
    while not link.outgoing.empty():
        kinds.append(link.outgoing.get_nowait().WhichOneof("command"))
    return kinds


async def test_a_lost_engine_is_fenced_once_however_many_ask() -> None:
    async with bench() as made:
        made.bus.there.set()
        made.fences.lost("e")
        await asyncio.gather(*(made.fences.fenced("e", 1) for _ in range(5)))
        assert made.bus.fenced == [0, 1, 2]
        made.fences.lost("e")
        await made.fences.fenced("e", 1)
        assert made.bus.fenced == [0, 1, 2] * 2


async def test_an_engine_that_attaches_waits_for_its_fences_and_is_told_what_holds_after_them() -> None:
    async with bench() as made:
        made.fences.lost("e")
        asking = asyncio.create_task(made.fences.epochs("e"))
        await asyncio.sleep(0)
        made.bus.there.set()
        told = await asking
        assert made.bus.fenced == [0, 1, 2]
        assert [(each.shard, each.lease_epoch) for each in told] == [(0, 5), (1, 6), (2, 7)]


async def test_a_shard_that_is_lost_while_the_bus_is_away_is_not_fenced_any_more() -> None:
    async with bench() as made:
        made.fences.lost("e")
        await asyncio.sleep(0)
        made.shards.drop([1])
        made.fences.forget(1)
        made.bus.there.set()
        await made.fences.fenced("e", 2)
        assert made.bus.fenced == [0, 2]


async def test_without_a_lease_nobody_is_fenced_until_it_runs_again() -> None:
    async with bench() as made:
        made.fences.lost("e")
        await asyncio.sleep(0)
        made.lease.clear()
        made.bus.there.set()
        waiting = asyncio.create_task(made.fences.fenced("e", 2))
        await asyncio.sleep(0)
        assert (made.bus.fenced, waiting.done()) == ([], False)
        made.lease.set()
        await waiting
        assert made.bus.fenced == [0, 1, 2]


async def test_an_engine_hears_its_epochs_before_all_that_is_meant_for_the_new_shards() -> None:
    async with bench() as made:
        link = made.attached()
        made.fences.tell_all([0])
        made.fences.tell_all([1, 2])
        link.send(engine_pb2.AttachResponse(adopt=engine_pb2.AdoptAttempts()))
        link.send(engine_pb2.AttachResponse(run=engine_pb2.RunProgram()))
        assert said(link) == []
        made.bus.there.set()
        await eventually(lambda: not link.holds)
        assert said(link) == ["epochs", "epochs", "adopt", "run"]
        link.send(engine_pb2.AttachResponse(run=engine_pb2.RunProgram()))
        assert said(link) == ["run"]
