"""What a critical path is made of outlives its manager, and a collector of traces is told of it."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.fake_engine import FakeEngine, attached
from tests.support.manager import Client, ManagerUnderTest, call, eventually, serving

from parrot_manager.core.commands import Changes
from parrot_manager.core.marks import Lap, Stage
from parrot_manager.store.base import Store
from parrot_manager.store.memory import MemoryStore
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import telemetry
from parrot_runtime.critical_path import Analysis, analyse
from parrot_runtime.critical_path.messages import times_of
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio

LAPS = [
    common_pb2.Lap(stage=common_pb2.STAGE_INPUTS, lasted_ms=0.25),
    common_pb2.Lap(stage=common_pb2.STAGE_DECODE, lasted_ms=0.125),
]


async def timed(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Done, and says what it did."""
    await engine.publish(program)
    engine.say(done=engine_pb2.AttemptDone(ref=program.ref, laps=LAPS))


async def ran(manager: ManagerUnderTest) -> str:
    """A session of two calls that was closed."""
    await manager.client.engine_ready()
    session = await manager.client.open()
    await manager.client.submit(session, [call("one", ["a"], ["b"]), call("two", ["b"], ["c"])], {"a": "x"})
    await manager.client.ended(session, "c")
    await manager.client.submit(session, [call("three", ["c"], ["d"])])
    await manager.client.ended(session, "d")
    await manager.client.close(session)
    return session


async def traced(client: Client, session: str) -> Analysis:
    return analyse(times_of(await client.session(session)), 0.0)


async def test_the_marks_of_a_session_are_in_the_database(store: Store, bus: Bus) -> None:
    async with serving(store, bus) as manager, attached(manager.address, bus, play=timed):
        session = await ran(manager)
        alive = await traced(manager.client, session)
    record = await store.load_session("default", session)
    assert record is not None
    marks = record.session.marks
    assert record.session.created_ms <= marks.opened_ms <= marks.settled_ms <= marks.closing_ms
    for one in record.calls:
        assert one.accepted_ms <= one.marks.entered_ms <= one.marks.first_dispatched_ms <= one.marks.sent_ms
        assert one.marks.sent_ms <= one.marks.told_ms
        assert one.marks.laps == (Lap(Stage.INPUTS, 0.25), Lap(Stage.DECODE, 0.125))
    assert [bool(one.marks.settled_ms) for one in record.calls] == [False, False, True]
    # Another manager, which has none of it in memory.
    async with serving(store, bus, retain_s=0.001) as manager:
        assert await traced(manager.client, session) == alive


class Stuck(MemoryStore):
    """A store in which sessions' ends arrive only when `again` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.again = asyncio.Event()

    async def commit(self, session_id: str, changes: Changes, epoch: int) -> None:
        """Commits, if it may."""
        if changes.session is not None and changes.session.state.ended:
            self.asked.set()
            await self.again.wait()
        await super().commit(session_id, changes, epoch)


async def test_a_session_that_another_manager_closes_keeps_when_its_client_asked(bus: Bus) -> None:
    store = Stuck()
    async with serving(store, bus) as manager, attached(manager.address, bus, play=timed):
        closing = asyncio.create_task(ran(manager))
        await store.asked.wait()
        (session,) = manager.shell.machine.state.sessions
        before = manager.shell.machine.state.sessions[session].session.marks
    # It was never answered.
    (told,) = await asyncio.gather(closing, return_exceptions=True)
    assert isinstance(told, BaseException)
    store.again.set()
    async with serving(store, bus) as manager:

        async def ended() -> bool:
            return bool((await manager.client.session(session)).session.ended_unix_ms)

        await eventually(ended)
        record = await store.load_session("default", session)
        assert record is not None
        assert record.session.marks == before
        assert 0 < before.opened_ms <= before.settled_ms <= before.closing_ms < record.session.ended_ms


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps every span that ends."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("parrot"))
    return kept


async def test_a_sessions_span_tells_of_its_path_at_its_end(
    memory: Store, bus: Bus, exporter: InMemorySpanExporter
) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus, play=timed):
        with telemetry.tracer().start_as_current_span("client") as client:
            session = await ran(manager)

        async def ended() -> list[ReadableSpan]:
            return [span for span in exporter.get_finished_spans() if span.name == "parrot.session"]

        (span,) = await eventually(ended)
        found = await traced(manager.client, session)
    assert span.context is not None
    assert span.context.trace_id == client.get_span_context().trace_id
    told = dict(span.attributes or {})
    assert told["parrot.session_id"] == session
    assert told["parrot.critical_path.total_ms"] == found.total_ms
    assert told["parrot.critical_path.calls"] == ("c-1", "c-2", "c-3")
    stages = {name: ms for name, ms in told.items() if name.endswith("_ms") and "total" not in name}
    assert stages == {f"parrot.critical_path.{stage}_ms": ms for stage, ms in found.stages.items()}
    assert (span.start_time, span.end_time) == (int(found.start_ms) * 10**6, int(found.end_ms) * 10**6)
