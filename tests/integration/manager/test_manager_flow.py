"""A call's way: submitted, stored, dispatched, committed, read."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import FakeEngine, attached, finish
from tests.support.manager import Client, call, eventually, serving

from parrot_manager import convert
from parrot_manager.store.base import Store
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio

DONE = common_pb2.CALL_STATE_DONE
LARGE = "漢 and 😀 " * 400_000


async def final(bus: Bus, session_id: str, variable_id: str) -> FinalRecord:
    """A variable's end on the bus, once it is there."""

    async def look() -> FinalRecord | None:
        return await Finals(bus).read(SessionSubjects("default", session_id).final(variable_id))

    found: FinalRecord = await eventually(look)
    return found


async def test_a_call_runs_when_its_input_is_there_and_its_value_is_stored(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        batch = [call("two", ["b"], ["c"]), call("one", ["a"], ["b"])]
        assert await manager.client.submit(session, batch, {"a": "x\0y"}) == ["c-1", "c-2"]
        got = await manager.client.ended(session, "c")
        assert got.value == "text of c"
        assert (await manager.client.get(session, "a")).value == "x\0y"
        assert [program.name for program in engine.programs] == ["one", "two"]
        graph = await manager.client.session(session)
        assert [c.state for c in graph.calls] == [DONE, DONE]
        assert graph.session.state == common_pb2.SESSION_STATE_OPEN
        first = graph.calls[1]
        assert (first.usage.prompt_tokens, first.timings.decode_ms, first.engine_id) == (7, 3, "e-1")
        assert (first.timings.static_prefill_ms, first.timings.dynamic_prefill_tokens) == (4, 0xFFFFFFFF)
        assert first.provenance == engine.provenance()
        assert 0 < first.accepted_unix_ms <= first.dispatched_unix_ms <= first.ended_unix_ms
        record = await store.load_session("default", session)
        assert record is not None
        assert record.calls[0].usage.output_tokens == 5
        assert convert.to_call(record.calls[0]).provenance == engine.provenance()
        assert await store.read_value(session, "c") == b"text of c"


async def test_an_engine_that_says_nothing_of_itself_is_taken_at_its_word(store: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program)
        engine.say(done=engine_pb2.AttemptDone(ref=program.ref))

    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await manager.client.ended(session, "a")
        (made,) = (await manager.client.session(session)).calls
        assert made.state == DONE
        assert not made.HasField("provenance")


async def test_hostile_words_of_an_engine_are_stored_as_text(store: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program)
        said = common_pb2.Provenance(model="a\0b", dtype="\u6f22" * 1_000, tensor_parallel=0xFFFFFFFF)
        engine.say(done=engine_pb2.AttemptDone(ref=program.ref, provenance=said))

    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"])])
        await manager.client.ended(session, "a")
        (made,) = (await manager.client.session(session)).calls
        assert (made.state, made.provenance.model) == (DONE, "a\u2400b")
        assert made.provenance.tensor_parallel == 0xFFFFFFFF
        assert len(made.provenance.dtype.encode()) <= 200


async def test_a_read_that_waits_returns_at_the_end_or_when_its_time_is_over(memory: Store, bus: Bus) -> None:
    released = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await released.wait()
        await finish(engine, program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        await manager.client.engine_ready()
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "x"})
        early = await manager.client.get(session, "b", wait_ms=1)
        assert early.variable.state == common_pb2.VARIABLE_STATE_PENDING
        waiting = asyncio.create_task(manager.client.get(session, "b", wait_ms=20_000))
        released.set()
        assert (await waiting).value == "text of b"


async def test_a_program_holds_the_calls_segments_in_order(memory: Store, bus: Bus) -> None:
    segments = [
        common_pb2.Segment(text="<|system|>\0{x}"),
        common_pb2.Segment(input=common_pb2.InputHole(name="q", variable_id="a", transforms=["strip"])),
        common_pb2.Segment(text="then"),
        common_pb2.Segment(
            output=common_pb2.OutputHole(
                name="o", variable_id="b", sampling=common_pb2.Sampling(max_tokens=9), transforms=["strip"]
            )
        ),
        common_pb2.Segment(text="read by nobody"),
    ]
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        await manager.client.submit(
            session, [manager_pb2.NewCall(name="f", model="m", segments=segments)], {"a": "four"}
        )
        await manager.client.ended(session, "b")
        (program,) = engine.programs
        names = SessionSubjects("default", session)
        context = f"{session}/c-1/1"
        assert program.ref == engine_pb2.AttemptRef(session_id=session, call_id="c-1", attempt=1)
        assert (program.tenant, program.name, program.model, program.version) == ("default", "f", "m", 1)
        assert program.deadline_unix_ms > 0
        system, value, then, generate = program.operations
        assert system.fill == engine_pb2.Fill(context_id=context, template_text="<|system|>\0{x}")
        assert value.fill.variable == engine_pb2.VariableSource(
            variable_id="a", final_subject=names.final("a"), size_bytes=4, transforms=["strip"]
        )
        assert then.fill.template_text == "then"
        assert generate.generate.sampling.max_tokens == 9
        assert generate.generate.output == engine_pb2.VariableSink(
            variable_id="b", delta_subject=names.delta, final_subject=names.final("b"), transforms=["strip"]
        )


async def test_a_value_is_on_the_bus_before_its_consumer_runs(memory: Store, bus: Bus) -> None:
    heard: list[str | None] = []

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        record = await engine.finals.read(program.operations[1].fill.variable.final_subject)
        heard.append(record.text if record is not None else None)
        await finish(engine, program)

    async with serving(memory, bus) as manager, attached(manager.address, bus, play=play):
        await manager.client.engine_ready()
        session = await manager.client.open()
        assert (await manager.client.set(session, "a", LARGE)).state == common_pb2.VARIABLE_STATE_READY
        await manager.client.submit(session, [call("one", ["a"], ["b"]), call("two", ["b"], ["c"])])
        await manager.client.ended(session, "c")
        assert heard == [LARGE, "text of b"]
        assert (await manager.client.get(session, "a")).value == LARGE


async def test_a_large_output_and_an_empty_one_are_committed_exactly(store: Store, bus: Bus) -> None:
    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        await engine.publish(program, LARGE + "\0" if program.name == "large" else "")
        engine.done(program)

    async with serving(store, bus) as manager, attached(manager.address, bus, play=play):
        session = await manager.client.open()
        await manager.client.submit(session, [call("large", [], ["a"]), call("empty", ["a"], ["b"])])
        assert (await manager.client.ended(session, "a")).value == LARGE + "\0"
        got = await manager.client.ended(session, "b")
        assert (got.value, got.variable.size_bytes) == ("", 0)


async def test_a_graph_of_a_thousand_calls_is_accepted_and_done(store: Store, bus: Bus) -> None:
    mappers = [call("map", ["document"], [f"part-{n}"]) for n in range(999)]
    join = call("reduce", [f"part-{n}" for n in range(999)], ["summary"])
    async with serving(store, bus) as manager, attached(manager.address, bus, capacity=64) as engine:
        await manager.client.engine_ready()
        session = await manager.client.open()
        ids = await manager.client.submit(session, [join, *mappers], {"document": "text"})
        assert len(ids) == 1000
        await manager.client.ended(session, "summary", within_s=40)
        graph = await manager.client.session(session)
        assert {c.state for c in graph.calls} == {DONE}
        assert engine.most_at_once <= 64
        assert len(engine.programs) == 1000
        document = next(v for v in graph.variables if v.id == "document")
        assert len(document.consumer_call_ids) == 999


async def test_closing_cancels_running_calls_at_their_engine_and_tells_readers(
    memory: Store, bus: Bus
) -> None:
    started = asyncio.Event()

    async def play(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
        started.set()
        await asyncio.Event().wait()

    async with (
        serving(memory, bus) as manager,
        attached(manager.address, bus, play=play, capacity=1) as engine,
    ):
        session = await manager.client.open()
        await manager.client.submit(session, [call("one", [], ["a"]), call("two", ["a"], ["b"])])
        await asyncio.wait_for(started.wait(), 5)
        assert (await manager.client.close(session)).state == common_pb2.SESSION_STATE_CANCELLED
        got = await manager.client.get(session, "b")
        assert got.variable.state == common_pb2.VARIABLE_STATE_CANCELLED
        assert got.variable.failure.type == "cancelled"
        assert (await final(bus, session, "a")).cancelled is not None
        await _slot_is_free(manager.client)
        assert [ref.call_id for ref in engine.cancelled] == ["c-1"]
        assert (await manager.client.close(session)).state == common_pb2.SESSION_STATE_CANCELLED


async def test_a_session_at_its_deadline_expires_with_its_calls(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager:
        session = await manager.client.open(timeout_ms=150)
        await manager.client.submit(session, [call("one", [], ["a"])])
        got = await manager.client.ended(session, "a")
        assert got.variable.failure.type == "deadline_exceeded"
        assert (await final(bus, session, "a")).failure == got.variable.failure
        graph = await manager.client.session(session)
        assert graph.session.state == common_pb2.SESSION_STATE_EXPIRED


async def test_an_ended_session_leaves_memory_and_the_bus_and_is_read_from_the_store(
    store: Store, bus: Bus
) -> None:
    settings = {"retain_s": 0.05, "purge_after_s": 0, "upkeep_interval_s": 0.05}
    async with serving(store, bus, **settings) as manager, attached(manager.address, bus):
        session = await manager.client.open(label="kept")
        await manager.client.submit(session, [call("one", ["a"], ["b"])], {"a": "given"})
        await manager.client.ended(session, "b")
        assert (await manager.client.close(session)).state == common_pb2.SESSION_STATE_CLOSED

        async def gone() -> bool:
            names = SessionSubjects("default", session)
            on_bus = await Finals(bus).read(names.final("b"))
            return session not in manager.shell.machine.state.sessions and on_bus is None

        await eventually(gone)
        graph = await manager.client.session(session)
        assert (graph.session.label, graph.calls[0].state) == ("kept", DONE)
        got = await manager.client.get(session, "b")
        assert got.value == "text of b"
        assert list((await manager.client.get(session, "a")).variable.consumer_call_ids) == ["c-1"]
        assert (await manager.client.close(session)).state == common_pb2.SESSION_STATE_CLOSED


async def _slot_is_free(client: Client) -> None:
    async def look() -> bool:
        return all(engine.running == 0 for engine in await client.engines())

    await eventually(look)


async def test_what_calls_took_is_learned_and_told_with_the_next_ones(memory: Store, bus: Bus) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        session = await manager.client.open()
        for number in range(20):
            await manager.client.submit(session, [call("same", [], [f"v{number}"])])
            await manager.client.ended(session, f"v{number}")
        # What the engine says that each of them generated.
        assert engine.programs[-1].expected_output_tokens == 5
        assert engine.programs[0].expected_output_tokens > 5
