"""A connection that breaks is not an engine that dies."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.fake_engine import attached, finish, hang
from tests.support.manager import ManagerUnderTest, call, eventually, serving

from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

BREAKS = 7
"""More than the tries a call has."""
LONG_S = 30.0


async def started(manager: ManagerUnderTest, session: str) -> None:
    async def runs() -> bool:
        found = (await manager.client.session(session)).calls[0]
        return found.state == common_pb2.CALL_STATE_RUNNING

    await eventually(runs)


async def test_a_call_outlives_any_number_of_broken_connections(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, engine_grace_s=LONG_S) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        program: engine_pb2.RunProgram | None = None
        for _ in range(BREAKS):
            claimed = (program.ref,) if program is not None else ()
            async with attached(
                manager.address, bus, play=hang, instance_id="one", claimed=claimed
            ) as engine:
                await started(manager, session)
                program = program or engine.programs[0]
                assert not engine.cancelled
                engine.kill()
                await asyncio.wait_for(engine.ended.wait(), 10)
        assert program is not None
        async with attached(manager.address, bus, instance_id="one", claimed=(program.ref,)) as engine:
            await engine.publish(program)
            engine.done(program)
            assert (await manager.client.ended(session, "a")).value == "text of a"
            assert (await manager.client.session(session)).calls[0].attempt == 1


async def test_nothing_new_goes_to_an_engine_whose_connection_broke(memory: Store, bus: Bus) -> None:
    async with (
        serving(memory, bus, engine_grace_s=LONG_S) as manager,
        attached(manager.address, bus, instance_id="one") as broken,
    ):
        await eventually(lambda: states(manager, {"e-1": "ready"}))
        broken.kill()
        await asyncio.wait_for(broken.ended.wait(), 10)
        await eventually(lambda: states(manager, {"e-1": "draining"}))
        async with attached(manager.address, bus, engine_id="e-2") as other:
            session = await manager.client.open()
            await manager.client.submit(session, [call("one", [], ["a"])])
            assert (await manager.client.ended(session, "a")).value == "text of a"
            assert len(other.programs) == 1


async def test_an_engine_that_does_not_come_back_in_time_is_lost(memory: Store, bus: Bus) -> None:
    async with (
        serving(memory, bus, engine_grace_s=0.3) as manager,
        attached(manager.address, bus, play=hang, instance_id="one") as gone,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await started(manager, session)
        broke = time.monotonic()
        gone.kill()
        async with attached(manager.address, bus, engine_id="e-2", play=finish):
            assert (await manager.client.ended(session, "a")).value == "text of a"
        assert time.monotonic() - broke >= 0.3
        assert (await manager.client.session(session)).calls[0].attempt == 2


async def test_an_engine_that_says_goodbye_is_not_waited_for(memory: Store, bus: Bus) -> None:
    async with (
        serving(memory, bus, engine_grace_s=LONG_S) as manager,
        attached(manager.address, bus, instance_id="one") as leaving,
    ):
        await eventually(lambda: states(manager, {"e-1": "ready"}))
        await leaving.leave()
        await eventually(lambda: states(manager, {}))


async def states(manager: ManagerUnderTest, wanted: dict[str, str]) -> bool:
    return {engine.id: engine.state for engine in await manager.client.engines()} == wanted
