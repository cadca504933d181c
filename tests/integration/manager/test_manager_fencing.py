"""A manager that has lost its shards, and does not know it yet, does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.cut_leases import CutStore
from tests.support.fake_engine import attached, hang
from tests.support.manager import ManagerUnderTest, call, eventually, serving
from tests.support.nats import temporary_nats

from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS, shard_of
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.fences import Fences

pytestmark = pytest.mark.anyio

QUICK: dict[str, Any] = {"lease_s": 0.5, "renew_s": 0.1}
RUNNING = common_pb2.CALL_STATE_RUNNING


@asynccontextmanager
async def first(shared: MemoryStore, bus: Bus) -> AsyncIterator[tuple[ManagerUnderTest, CutStore]]:
    """A manager that serves all shards, and can be cut off from its lease."""
    store = CutStore(shared)
    async with serving(store, bus, manager_id="m-1", **QUICK) as manager:
        yield manager, store


@asynccontextmanager
async def heir(
    shared: MemoryStore, bus: Bus, before: ManagerUnderTest, store: CutStore
) -> AsyncIterator[ManagerUnderTest]:
    """Another one that has taken all of them over, while the first is cut off and believes to have them."""
    store.cut.away = True
    async with serving(shared, bus, manager_id="m-2", **QUICK) as manager:

        async def has_all() -> bool:
            return len(manager.shell.shards.served) == SHARDS

        await eventually(has_all)
        assert len(before.shell.shards.served) == SHARDS
        yield manager


async def running(manager: ManagerUnderTest, session: str) -> bool:
    """Whether a session's first call runs."""
    return (await manager.client.session(session)).calls[0].state == RUNNING


async def test_its_writes_are_refused_and_it_lets_the_session_go(memory: MemoryStore, bus: Bus) -> None:
    async with first(memory, bus) as (manager, store):
        session = await manager.client.open()
        async with heir(memory, bus, manager, store) as other:
            with pytest.raises(Fault) as refused:
                await manager.client.set(session, "a", "stale")
            assert refused.value.kind is errors.WRONG_MANAGER
            assert await other.client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"}) == ["c-1"]
            assert await memory.read_value(session, "a") == b"x"


async def test_who_waits_there_is_sent_on(memory: MemoryStore, bus: Bus) -> None:
    async with first(memory, bus) as (manager, store):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        waiting = asyncio.create_task(manager.client.get(session, "a", wait_ms=30_000))
        async with heir(memory, bus, manager, store):
            store.cut.away = False
            with pytest.raises(Fault) as sent_on:
                await asyncio.wait_for(waiting, 10)
            assert sent_on.value.kind is errors.WRONG_MANAGER


async def test_its_view_of_an_engine_does_not_fence_that_engine(memory: MemoryStore, bus: Bus) -> None:
    fences = Fences(bus)
    async with (
        first(memory, bus) as (manager, store),
        attached(manager.address, bus, engine_id="e-kept") as engine,
        heir(memory, bus, manager, store) as other,
    ):
        granted = await fences.epochs("e-kept", range(SHARDS))
        engine.kill()

        async def noticed() -> bool:
            return not manager.shell.machine.state.engines

        await eventually(noticed)
        store.cut.away = False

        async def shared() -> bool:
            return len(manager.shell.shards.served) == len(other.shell.shards.served) == SHARDS // 2

        await eventually(shared)
        theirs = other.shell.shards.served
        assert await fences.epochs("e-kept", theirs) == {shard: granted[shard] for shard in theirs}


async def test_without_a_lease_nothing_is_sent_to_an_engine(memory: MemoryStore, bus: Bus) -> None:
    async with first(memory, bus) as (manager, store), attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        store.cut.away = True

        async def over() -> bool:
            return not manager.shell.keeper.valid

        await eventually(over)
        with pytest.raises(Fault) as unknown:
            await manager.client.managers()
        assert unknown.value.kind is errors.UNAVAILABLE
        # Nobody has taken the shard: it is stored, and told to nobody.
        assert await manager.client.submit(session, [call("one", [], ["a"])]) == ["c-1"]
        await manager.shell.settled(session)
        assert engine.programs == []
        store.cut.away = False
        assert (await manager.client.ended(session, "a")).value == "text of a"
        assert [program.ref.attempt for program in engine.programs] == [1]


async def test_an_engine_that_attaches_anew_is_not_refused_by_the_bus(memory: MemoryStore, bus: Bus) -> None:
    fences = Fences(bus)
    async with first(memory, bus) as (manager, _):
        session = await manager.client.open()
        shard = shard_of(session)
        async with attached(manager.address, bus, play=hang) as before:
            await manager.client.submit(session, [call("one", [], ["a"])])

            async def runs() -> bool:
                return await running(manager, session)

            await eventually(runs)
            assert before.registered is not None
            (old,) = [each for each in before.registered.epochs if each.shard == shard]
            before.kill()
            await asyncio.wait_for(before.ended.wait(), 10)
            async with attached(manager.address, bus) as after:
                assert (await manager.client.ended(session, "a")).value == "text of a"
                assert after.registered is not None
                (new,) = [each for each in after.registered.epochs if each.shard == shard]
                granted = (await fences.epochs(after.engine_id, [shard]))[shard]
        assert (new.delta_sequence, new.final_sequence) == (granted.delta_sequence, granted.final_sequence)
        assert new.final_sequence > old.final_sequence
        assert new.lease_epoch == old.lease_epoch


async def test_the_same_engine_process_attaches_anew_and_loses_nothing(memory: MemoryStore, bus: Bus) -> None:
    async with (
        first(memory, bus) as (manager, _),
        attached(manager.address, bus, play=hang, instance_id="one") as older,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])

        async def runs() -> bool:
            return await running(manager, session)

        await eventually(runs)
        program = older.programs[0]
        async with attached(manager.address, bus, instance_id="one", claimed=(program.ref,)) as newer:
            await asyncio.wait_for(older.ended.wait(), 10)
            assert older.refused is None
            await newer.publish(program)
            newer.done(program)
            assert (await manager.client.ended(session, "a")).value == "text of a"
            assert (await manager.client.session(session)).calls[0].attempt == 1
            assert older.registered is not None
            assert newer.registered is not None
            assert list(newer.registered.epochs) == list(older.registered.epochs)


async def test_an_engine_that_attaches_during_a_take_over_goes_on_with_what_it_runs(
    memory: MemoryStore, bus: Bus
) -> None:
    class Slow(CutStore):
        """Finds a shard's sessions when it may."""

        may = asyncio.Event()

        async def find_live(self, shards: Collection[int], ended_after_ms: int) -> list[list[str]]:
            await self.may.wait()
            return await super().find_live(shards, ended_after_ms)

    slow = Slow(memory)
    slow.may.set()
    async with (
        serving(memory, bus, manager_id="m-1", **QUICK) as before,
        attached(before.address, bus, play=hang, instance_id="one") as older,
        serving(slow, bus, manager_id="m-2", **QUICK) as after,
    ):

        async def shared() -> bool:
            return len(before.shell.shards.served) == len(after.shell.shards.served) == SHARDS // 2

        await eventually(shared)
        slow.may.clear()
        session = await before.client.open()
        await before.client.submit(session, [call("one", [], ["a"])])

        async def runs() -> bool:
            return await running(before, session)

        await eventually(runs)
        program = older.programs[0]
        leaving = asyncio.create_task(before.shell.keeper.leave())

        async def claimed() -> bool:
            return shard_of(session) in after.shell.shards.held

        await eventually(claimed)
        async with attached(after.address, bus, instance_id="one", claimed=(program.ref,)) as newer:
            await after.client.engine_ready()
            slow.may.set()

            async def adopted() -> bool:
                return (await after.client.session(session)).calls[0].attempt == 1

            await eventually(after_refusals(adopted))
            await newer.publish(program)
            newer.done(program)
            await leaving
            assert (await after.client.ended(session, "a")).value == "text of a"
            assert newer.cancelled == []
            assert newer.programs == []


async def test_a_shard_is_served_though_the_bus_is_away_and_its_engines_hear_of_it_later(
    memory: MemoryStore,
) -> None:
    with temporary_nats() as server:
        async with (
            connected(server.url, "test", 5) as bus,
            serving(memory, bus, manager_id="m-1", **QUICK) as before,
            serving(memory, bus, manager_id="m-2", **QUICK) as after,
            attached(after.address, bus) as engine,
        ):
            await after.client.engine_ready()

            async def shared() -> bool:
                return len(before.shell.shards.served) == len(after.shell.shards.served) == SHARDS // 2

            await eventually(shared)
            session = await before.client.open()
            server.kill()
            await before.shell.keeper.leave()
            await eventually(after_refusals(lambda: _is_set(after, session)))
            assert engine.programs == []
            await after.client.submit(session, [call("one", ["a"], ["b"])])
            await asyncio.to_thread(server.start)
            assert (await after.client.ended(session, "b", within_s=20)).value == "text of b"


async def _is_set(manager: ManagerUnderTest, session: str) -> bool:
    return (await manager.client.set(session, "a", "given")).size_bytes == 5


def after_refusals(look: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    """A look that does not hold as long as the session is nobody's."""

    async def looked() -> bool:
        try:
            return await look()
        except Fault as fault:
            if fault.kind is not errors.WRONG_MANAGER:
                raise
            return False

    return looked
