"""A manager that dies is followed by another on the same store, and nothing accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.fake_engine import FakeEngine, Play, attached, finish, hang, hang_streaming
from tests.support.manager import ManagerUnderTest, call, eventually, serving

from parrot_manager import effects
from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

Look = Callable[[], Awaitable[bool]]
RUNNING = common_pb2.CALL_STATE_RUNNING
STREAMING = common_pb2.VARIABLE_STATE_STREAMING


async def state_of(manager: ManagerUnderTest, session: str) -> int:
    """The state of the first call."""
    return (await manager.client.session(session)).calls[0].state


async def test_calls_that_waited_go_on(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open(label="kept")
        await manager.client.submit(
            session, [call("one", ["a"], ["b"]), call("two", ["b"], ["c"])], {"a": "x\0"}
        )
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        assert (await manager.client.ended(session, "c")).value == "text of c"
        assert [program.ref.attempt for program in engine.programs] == [1, 1]
        assert (await manager.client.session(session)).session.label == "kept"
        assert await manager.client.submit(session, [call("three", ["c"], ["d"])]) == ["c-3"]
        await manager.client.ended(session, "d")


async def test_what_an_engine_finished_meanwhile_is_committed(store: Store, bus: Bus) -> None:
    session, program, engine = await _killed_while_running(store, bus, hang)
    await engine.publish(program)
    async with serving(store, bus) as manager:
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert (await manager.client.session(session)).calls[0].attempt == 1


async def test_what_an_engine_still_runs_is_not_run_again(store: Store, bus: Bus) -> None:
    session, first, _ = await _killed_while_running(store, bus, hang)
    async with serving(store, bus) as manager, attached(manager.address, bus, claimed=(first.ref,)) as engine:
        await manager.client.engine_ready()
        await engine.publish(first)
        engine.done(first)
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert engine.programs == []
        made = (await manager.client.session(session)).calls[0]
        assert (made.attempt, made.usage.output_tokens) == (1, 5)


async def test_what_its_engine_does_not_claim_runs_again_as_a_new_attempt(store: Store, bus: Bus) -> None:
    session, first, _ = await _killed_while_running(store, bus, hang)
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert [program.ref.attempt for program in engine.programs] == [2]
        assert first.ref in engine.cancelled


async def test_what_the_engine_does_not_come_back_for_runs_elsewhere(store: Store, bus: Bus) -> None:
    session, _, _ = await _killed_while_running(store, bus, hang)
    async with serving(store, bus) as manager, attached(manager.address, bus, engine_id="e-2") as engine:
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert [program.ref.attempt for program in engine.programs] == [2]


async def test_what_was_streamed_goes_on_behind_it(store: Store, bus: Bus) -> None:
    session, _, _ = await _killed_while_running(store, bus, hang_streaming)
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert [streamed(program) for program in engine.programs] == ["a beginning"]


async def test_text_on_the_bus_counts_as_streamed_even_if_nobody_said_so(store: Store, bus: Bus) -> None:
    session, program, engine = await _killed_while_running(store, bus, hang)
    await engine.write(program, "unheard of")
    async with serving(store, bus) as manager, attached(manager.address, bus) as other:
        await manager.client.ended(session, "b")
        assert [streamed(program) for program in other.programs] == ["unheard of"]


async def test_text_whose_beginning_the_bus_has_dropped_fails_its_call_openly(
    store: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, program, engine = await _killed_while_running(store, bus, hang)
    await engine.write(program, "and so on", offset_bytes=100)
    monkeypatch.setattr(effects, "DELTA_AGE_S", -1)
    async with serving(store, bus) as manager, attached(manager.address, bus) as other:
        failure = (await manager.client.ended(session, "b")).variable.failure
        assert failure.type == "not_resumable"
        assert other.programs == []


def streamed(program: engine_pb2.RunProgram) -> str:
    """What a program's output is to go on behind."""
    (task,) = [op.generate for op in program.operations if op.HasField("generate")]
    return task.streamed_text


async def test_a_deadline_that_passed_meanwhile_is_kept(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager:
        session = await manager.client.open(timeout_ms=200)
        await manager.client.submit(session, [call("one", [], ["a"])])
    async with serving(store, bus) as manager:
        assert (await manager.client.ended(session, "a")).variable.failure.type == "deadline_exceeded"


async def test_restarts_in_the_middle_of_a_graph_lose_nothing(store: Store, bus: Bus) -> None:
    batch = [call("map", ["document"], [f"part-{n}"]) for n in range(20)]
    batch.append(call("reduce", [f"part-{n}" for n in range(20)], ["summary"]))
    seen: list[engine_pb2.AttemptRef] = []

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        seen.append(program.ref)
        await finish(engine, program)

    async with serving(store, bus) as manager, attached(manager.address, bus, play=play, capacity=2):
        session = await manager.client.open()
        await manager.client.submit(session, batch, {"document": "text"})
    for _ in range(3):
        before = len(seen)
        async with serving(store, bus) as manager, attached(manager.address, bus, play=play, capacity=2):
            await eventually(_grown(seen, before + 2))
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        assert (await manager.client.ended(session, "summary")).value == "text of summary"
        graph = await manager.client.session(session)
        assert {c.state for c in graph.calls} == {common_pb2.CALL_STATE_DONE}


async def test_draining_lets_running_calls_finish_and_starts_nothing(store: Store, bus: Bus) -> None:
    go_on = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await go_on.wait()
        await finish(engine, program)

    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
        await eventually(_is(manager, session, RUNNING))
        draining = asyncio.create_task(manager.shell.drain())
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait_for(draining, 5)
        record = await store.load_session("default", session)
        assert record is not None
        assert [c.state.name for c in record.calls] == ["DONE", "ACCEPTED"]
    async with serving(store, bus) as manager, attached(manager.address, bus):
        assert (await manager.client.ended(session, "b")).value == "text of b"


async def test_a_drain_ends_though_a_call_does_not(store: Store, bus: Bus) -> None:
    async with (
        serving(store, bus, drain_s=0.2) as manager,
        attached(manager.address, bus, play=hang) as engine,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await eventually(_is(manager, session, RUNNING))
        await asyncio.wait_for(manager.shell.drain(), 5)
        await asyncio.wait_for(engine.ended.wait(), 5)
    async with serving(store, bus) as manager, attached(manager.address, bus):
        assert (await manager.client.ended(session, "a")).value == "text of a"


async def _killed_while_running(
    store: Store, bus: Bus, play: Play
) -> tuple[str, engine_pb2.RunProgram, FakeEngine]:
    """A session whose only call runs, and whose manager is gone."""
    async with serving(store, bus) as manager, attached(manager.address, bus, play=play) as engine:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "given"})
        await eventually(_is(manager, session, RUNNING))
        if play is hang_streaming:

            async def streaming() -> bool:
                return (await manager.client.get(session, "b")).variable.state == STREAMING

            await eventually(streaming)
            await manager.shell.settled(session)
    return session, engine.programs[0], engine


def _is(manager: ManagerUnderTest, session: str, state: int) -> Look:
    async def look() -> bool:
        return await state_of(manager, session) == state

    return look


def _grown(items: list[engine_pb2.AttemptRef], size: int) -> Look:
    async def look() -> bool:
        return len(items) >= size

    return look
