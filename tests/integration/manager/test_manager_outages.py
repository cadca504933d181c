"""Postgres or NATS goes away while the manager works, and comes back."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import FakeEngine, attached, finish
from tests.support.manager import call, serving
from tests.support.nats import temporary_nats
from tests.support.postgres import temporary_postgres

from parrot_manager.store import schema
from parrot_manager.store.base import Store
from parrot_manager.store.postgres import opened
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus, connected

pytestmark = pytest.mark.anyio


async def test_without_postgres_nothing_is_accepted_and_what_runs_is_committed_later(bus: Bus) -> None:
    away, started = asyncio.Event(), asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        started.set()
        await away.wait()
        await finish(engine, program)

    with temporary_postgres() as server:
        url = server.new_database()
        await schema.migrate(url, 10)
        async with (
            opened(url, 0.5) as store,
            serving(store, bus, store_deadline_s=0.5) as manager,
            attached(manager.address, bus, play=play),
        ):
            session = await manager.client.open()
            await manager.client.submit(session, [call("one", [], ["a"])])
            await asyncio.wait_for(started.wait(), 5)
            await asyncio.to_thread(server.stop)
            for ask in (
                manager.client.open(),
                manager.client.submit(session, [call("two", [], ["b"])]),
                manager.client.close(session),
            ):
                with pytest.raises(Fault) as refused:
                    await ask
                assert refused.value.kind is errors.UNAVAILABLE
                assert refused.value.retry_after_ms > 0
            pending = await manager.client.get(session, "a")
            assert pending.variable.state == common_pb2.VARIABLE_STATE_PENDING
            away.set()
            server.start()
            assert (await manager.client.ended(session, "a")).value == "text of a"
            assert await _submitted(manager.client.submit, session) == ["c-2"]
            assert (await manager.client.ended(session, "b")).value == "text of b"


async def test_without_nats_a_finished_call_is_committed_when_it_is_back(memory: Store) -> None:
    published, back = asyncio.Event(), asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program)
        published.set()
        await back.wait()
        engine.done(program)

    with temporary_nats() as server:
        async with (
            connected(server.url, "test", 5) as bus,
            serving(memory, bus) as manager,
            attached(manager.address, bus, play=play),
        ):
            session = await manager.client.open()
            await manager.client.submit(session, [call("one", [], ["a"])])
            await asyncio.wait_for(published.wait(), 5)
            server.kill()
            back.set()
            assert (await manager.client.set(session, "x", "stored all the same")).size_bytes == 19
            await asyncio.to_thread(server.start)
            assert (await manager.client.ended(session, "a", within_s=20)).value == "text of a"


async def _submitted(submit: object, session: str) -> object:
    """A batch, sent until the refused one before it is settled."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await submit(session, [call("two", [], ["b"])])  # type: ignore[operator]
            except Fault as fault:
                if fault.kind is not errors.UNAVAILABLE:
                    raise
