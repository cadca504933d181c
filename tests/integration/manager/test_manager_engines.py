"""Engines come, go, fall silent, and say odd things."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.fake_engine import FakeEngine, attached, finish, hang, hang_streaming, outputs
from tests.support.manager import ManagerUnderTest, call, eventually, serving

from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord

pytestmark = pytest.mark.anyio


async def running(manager: ManagerUnderTest, session: str) -> None:
    """Returns once the first call runs."""

    async def look() -> bool:
        graph = await manager.client.session(session)
        return graph.calls[0].state == common_pb2.CALL_STATE_RUNNING

    await eventually(look)


async def test_a_killed_engines_call_fails_when_no_other_engine_comes(store: Store, bus: Bus) -> None:
    async with (
        serving(store, bus, engine_wait_s=0.3) as manager,
        attached(manager.address, bus, play=hang_streaming) as engine,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
        await running(manager, session)
        killed = time.monotonic()
        engine.kill()
        lost = await manager.client.ended(session, "a")
        assert time.monotonic() - killed < 5
        assert lost.variable.failure.type == "no_engine"
        assert lost.variable.failure.may_retry
        passed_down = (await manager.client.ended(session, "b")).variable.failure
        assert (passed_down.type, passed_down.cause_type, passed_down.cause_call_id) == (
            "upstream_failed",
            "no_engine",
            "c-1",
        )
        assert await manager.client.engines() == []


async def test_an_engine_that_dies_after_its_last_word_loses_nothing(memory: Store, bus: Bus) -> None:
    published = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program)
        published.set()
        await asyncio.Event().wait()

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play) as engine:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await asyncio.wait_for(published.wait(), 5)
        engine.kill()
        assert (await manager.client.ended(session, "a")).value == "text of a"


async def test_a_silent_engine_is_given_up(memory: Store, bus: Bus) -> None:
    settings = {"engine_silence_s": 0.3, "heartbeat_s": 0.1, "engine_wait_s": 0.3}
    async with (
        serving(memory, bus, **settings) as manager,
        attached(manager.address, bus, play=hang) as engine,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        failure = (await manager.client.ended(session, "a")).variable.failure
        assert failure.type == "no_engine"
        await asyncio.wait_for(engine.ended.wait(), 5)
        assert engine.registered is not None
        assert engine.registered.heartbeat_interval_ms == 100


async def test_an_engine_with_a_heartbeat_is_kept(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        for _ in range(12):
            await asyncio.sleep(0.05)
            engine.say(heartbeat=engine_pb2.Heartbeat(running=1))
        await finish(engine, program)

    async with (
        serving(memory, bus, engine_silence_s=0.3) as manager,
        attached(manager.address, bus, play=play),
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        assert (await manager.client.ended(session, "a")).value == "text of a"


async def test_without_an_engine_a_call_fails_after_the_wait(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus, engine_wait_s=0.2) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"], model="any")])
        failure = (await manager.client.ended(session, "a")).variable.failure
        assert failure.type == "no_engine"
        assert "'any'" in failure.message


async def test_a_call_accepted_before_any_engine_runs_when_one_comes(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        async with attached(manager.address, bus):
            assert (await manager.client.ended(session, "a")).value == "text of a"


async def test_a_draining_engine_finishes_and_gets_nothing_new(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        engine.say(draining=engine_pb2.Draining())
        await finish(engine, program)

    async with (
        serving(memory, bus, engine_wait_s=0.3, scheduling_without="streaming_edges") as manager,
        attached(manager.address, bus, play=play) as engine,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
        assert (await manager.client.ended(session, "a")).value == "text of a"
        assert [e.state for e in await manager.client.engines()] == ["draining"]
        assert (await manager.client.ended(session, "b")).variable.failure.type == "no_engine"
        assert len(engine.programs) == 1


async def test_capacity_is_kept_and_cancelled_calls_give_their_room_back(memory: Store, bus: Bus) -> None:
    async with (
        serving(memory, bus) as manager,
        attached(manager.address, bus, play=hang, capacity=2) as engine,
    ):
        first = await manager.client.open()
        await manager.client.submit(first, [call(f"f{n}", [], [f"v{n}"]) for n in range(3)])
        second = await manager.client.open()
        await manager.client.submit(second, [call("late", [], ["late"])])
        await running(manager, first)
        assert len(engine.programs) == 2
        await manager.client.close(first)
        await running(manager, second)
        assert engine.most_at_once == 2


async def test_an_engine_that_attaches_again_replaces_its_older_stream(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, play=hang) as old:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await running(manager, session)
        claimed = (old.programs[0].ref,)
        async with attached(manager.address, bus, claimed=claimed) as new:
            await asyncio.wait_for(old.ended.wait(), 5)
            assert (await manager.client.ended(session, "a")).value == "text of a"

            async def told() -> bool:
                return claimed[0] in new.cancelled

            await eventually(told)
            await manager.client.submit(session, [call("two", [], ["b"])])
            assert (await manager.client.ended(session, "b")).value == "text of b"
            # Should it be another engine with the same id, it is told not to come back.
            assert old.refused is not None
            assert (old.refused.kind, old.refused.field) == (errors.INVALID_REQUEST, "engine_id")
            assert new.refused is None


async def test_an_input_the_bus_lost_is_published_again(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        if program.ref.attempt < 3:
            engine.fail(program, "value_unavailable")
        else:
            await finish(engine, program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play) as engine:
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "given"})
        assert (await manager.client.ended(session, "b")).value == "text of b"
        assert [program.ref.attempt for program in engine.programs] == [1, 2, 3]


async def test_an_engines_error_is_the_calls_and_of_its_root(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        engine.fail(program, "prompt_too_long", "9,000 tokens\0 exceed 2,048")

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
        failure = (await manager.client.ended(session, "a")).variable.failure
        assert (failure.type, failure.call_id, failure.variable_id) == ("prompt_too_long", "c-1", "a")
        assert "\0" not in failure.message
        assert (await manager.client.ended(session, "b")).variable.failure.cause_type == "prompt_too_long"
        await manager.client.submit(session, [call("late", ["b"], ["c"])])
        assert (await manager.client.ended(session, "c")).variable.failure.cause_call_id == "c-1"


async def test_done_without_an_output_on_the_bus_fails_the_call(memory: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.write(program, "a beginning")
        (sink,) = outputs(program)
        foreign = FinalRecord(sink.variable_id, "c-9", 1, text="another call's")
        await engine.finals.publish(sink.final_subject, foreign)
        engine.done(program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        failure = (await manager.client.ended(session, "a")).variable.failure
        assert failure.type == "value_unavailable"


async def test_a_call_its_engines_stop_by_themselves_is_tried_a_bounded_number_of_times(
    memory: Store, bus: Bus
) -> None:
    tries: list[int] = []

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        tries.append(program.ref.attempt)
        engine.say(cancelled=engine_pb2.AttemptCancelled(ref=program.ref))

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        assert (await manager.client.ended(session, "a")).variable.failure.type == "engine_lost"
        assert tries == [1, 2, 3, 4, 5, 6]


async def test_reports_on_attempts_nobody_knows_are_passed_over(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        ghost = engine_pb2.AttemptRef(session_id="s00-000000000000beef", call_id="c-1", attempt=1)
        engine.say(started=engine_pb2.AttemptStarted(ref=ghost))
        engine.say(streaming=engine_pb2.AttemptStreaming(ref=ghost, variable_id="a"))
        engine.say(done=engine_pb2.AttemptDone(ref=ghost))
        engine.say(failed=engine_pb2.AttemptFailed(ref=ghost))
        engine.say()
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        assert (await manager.client.ended(session, "a")).value == "text of a"


@pytest.mark.parametrize(("engine_id", "model", "capacity"), [("e 1", "m", 1), ("e", "", 1), ("e", "m", 0)])
async def test_an_engine_that_registers_wrongly_is_refused(
    memory: Store, bus: Bus, engine_id: str, model: str, capacity: int
) -> None:
    async with (
        serving(memory, bus) as manager,
        attached(manager.address, bus, engine_id=engine_id, model=model, capacity=capacity) as engine,
    ):
        await asyncio.wait_for(engine.ended.wait(), 5)
        assert engine.registered is None


async def test_models_are_listed_with_their_engines_and_smallest_window(memory: Store, bus: Bus) -> None:
    async with (
        serving(memory, bus) as manager,
        attached(manager.address, bus, engine_id="e-1"),
        attached(manager.address, bus, engine_id="e-2"),
        attached(manager.address, bus, engine_id="e-3", model="other"),
    ):
        for name in ("e-1", "e-2", "e-3"):
            await manager.client.engine_ready(name)
        models = await manager.client.models()
        assert [(m.id, m.engines, m.context_window_tokens) for m in models] == [
            ("m", 2, 2048),
            ("other", 1, 2048),
        ]
        engine = (await manager.client.engines())[0]
        assert (engine.backend, engine.version, engine.dtype, engine.attention, engine.parrot_version) == (
            "sim",
            "1.2",
            "float32",
            "none",
            "0.1",
        )
        session = await manager.client.open()
        with pytest.raises(Fault) as refused:
            await manager.client.submit(session, [call("one", [], ["a"], model="gpt")])
        assert refused.value.kind is errors.UNKNOWN_MODEL
        assert "m, other" in refused.value.message


@pytest.mark.parametrize("broken", ["parrot_manager.programs.build", "parrot_manager.traces.read_values"])
async def test_a_bug_ends_the_call_it_has_to_do_with_and_no_other(
    memory: Store, bus: Bus, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError

    async with serving(memory, bus) as manager, attached(manager.address, bus):
        session = await manager.client.open()
        with monkeypatch.context() as patched:
            patched.setattr(broken, fail)
            await manager.client.submit(session, [call("one", [], ["a"])])
            failure = (await manager.client.ended(session, "a")).variable.failure
        assert failure.type == "internal"
        await manager.client.submit(session, [call("two", [], ["b"])])
        assert (await manager.client.ended(session, "b")).value == "text of b"
