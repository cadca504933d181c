"""Sessions that a client deletes: nothing of them is left, whatever they were at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_engine import FakeEngine, attached
from tests.support.manager import Client, call, eventually, serving

from parrot_manager.store.base import Store
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.values.v1 import values_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio


async def delete(client: Client, session_id: str, *, only_empty: bool = False) -> None:
    """Deletes a session."""
    request = pb.DeleteSessionRequest(tenant=client.tenant, session_id=session_id, only_empty=only_empty)
    await client._ask("DeleteSession", request)


async def is_gone(client: Client, store: Store, bus: Bus, session_id: str) -> None:
    """Checks that nothing of a session is left."""
    for asked in (client.session(session_id), client.get(session_id, "b"), delete(client, session_id)):
        with pytest.raises(Fault) as refused:
            await asked
        assert refused.value.kind is errors.NOT_FOUND
    assert await store.load_session("default", session_id) is None
    assert await store.read_values(session_id, ["a", "b"]) == {}
    assert await Finals(bus).read(SessionSubjects("default", session_id).final("b")) is None


async def test_a_session_that_has_ended_is_deleted(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus):
        client = manager.client
        await client.engine_ready()
        session, other = await client.open(), await client.open()
        for one in (session, other):
            await client.submit(one, [call("one", ["a"], ["b"])], {"a": "x"})
            await client.ended(one, "b")

        await delete(client, session)

        await is_gone(client, store, bus, session)
        assert (await client.get(other, "b")).value == "text of b"


async def test_one_that_is_out_of_memory_is_deleted_too(store: Store, bus: Bus) -> None:
    async with serving(store, bus, retain_s=0.05) as manager, attached(manager.address, bus):
        client = manager.client
        await client.engine_ready()
        session = await client.open()
        await client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
        await client.ended(session, "b")
        await client.close(session)

        async def forgotten() -> bool:
            return session not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        assert (await client.get(session, "b")).value == "text of b"
        await delete(client, session)
        await is_gone(client, store, bus, session)


async def test_what_runs_is_stopped_and_its_place_is_free_again(store: Store, bus: Bus) -> None:
    began = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.write(program, "half of ")
        began.set()
        await asyncio.Event().wait()

    async with (
        serving(store, bus) as manager,
        attached(manager.address, bus, capacity=1, play=play) as engine,
    ):
        client = manager.client
        await client.engine_ready()
        session = await client.open()
        await client.submit(session, [call("one", ["a"], ["b"]), call("two", ["b"], ["c"])], {"a": "x"})
        await began.wait()

        await delete(client, session)

        await is_gone(client, store, bus, session)
        began.clear()
        after = await client.open()
        await client.submit(after, [call("one", ["a"], ["b"])], {"a": "x"})
        await asyncio.wait_for(began.wait(), 10)
        assert engine.cancelled


async def test_deleted_under_a_key_it_is_opened_anew_under_it(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        session = await client.open(key="once")
        await client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"}, key="batch")
        await delete(client, session)

        assert await client.open(key="once") == session
        graph = await client.session(session)
        assert not graph.calls
        assert await client.submit(session, [call("two", ["c"], ["d"])], {"c": "x"}, key="batch") == ["c-1"]


async def test_nothing_is_told_of_it_behind_its_deletion(
    store: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store, bus) as manager:
        client, states = manager.client, manager.shell.values.states
        append, under_way, go_on = states.append, asyncio.Event(), asyncio.Event()

        async def slow(names: SessionSubjects, message: values_pb2.SessionStates, after: int) -> int:
            under_way.set()
            await go_on.wait()
            return await append(names, message, after)

        monkeypatch.setattr(states, "append", slow)
        session = await client.open(key="once")
        await client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
        await under_way.wait()
        deleting = asyncio.create_task(delete(client, session))

        async def has_ended() -> bool:
            record = await store.load_session("default", session)
            return record is None or bool(record.session.ended_ms)

        await eventually(has_ended)
        await asyncio.wait([deleting], timeout=0.2)
        assert not deleting.done()
        go_on.set()
        await deleting
        assert await states.last(SessionSubjects("default", session)) is None
        assert await client.open(key="once") == session


async def test_only_an_empty_one_is_deleted_where_that_is_asked_for(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        client = manager.client
        empty, full = await client.open(), await client.open()
        await client.submit(full, [call("one", ["a"], ["b"])], {"a": "x"})
        for one in (empty, full):
            await delete(client, one, only_empty=True)

        assert await store.load_session("default", empty) is None
        assert len((await client.session(full)).calls) == 1


async def test_another_tenant_deletes_nothing(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open()
        stranger: Any = Client.__new__(Client)
        stranger._stub, stranger.tenant = manager.client._stub, "stranger"
        with pytest.raises(Fault) as refused:
            await delete(stranger, session)
        assert refused.value.kind is errors.NOT_FOUND
        assert (await manager.client.session(session)).session.id == session


async def test_what_another_manager_deleted_is_not_shown_by_one_that_has_its_shard_back(
    store: Store, bus: Bus
) -> None:
    async with serving(store, bus, retain_s=0.05) as manager:
        client, shards = manager.client, manager.shell.shards
        session = await client.open()
        await client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
        await client.close(session)

        async def forgotten() -> bool:
            return session not in manager.shell.machine.state.sessions

        await eventually(forgotten)
        assert len((await client.session(session)).calls) == 1
        # Behind its back, as another would that had the shard in between.
        epoch = shards.epoch_of(session)
        await store.delete_session("default", session, epoch)
        shards.hold({shard_of(session): epoch + 1})
        with pytest.raises(Fault) as refused:
            await client.session(session)
        assert refused.value.kind is errors.NOT_FOUND
        shards.hold({shard_of(session): epoch})
