"""Programs as a manager sends them, and what an engine reports back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from parrot_engine.backends.base import Backend
from parrot_engine.programs.outputs import Press
from parrot_engine.programs.table import VERSION, Programs
from parrot_engine.programs.tools import Features, Tools
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import ids
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

WAIT_S = 30.0


@dataclass
class Session:
    """One session's programs."""

    names: SessionSubjects = field(default_factory=lambda: SessionSubjects("default", ids.new_session_id()))

    def ref(self, call_id: str = "c-1", attempt: int = 1) -> engine_pb2.AttemptRef:
        return engine_pb2.AttemptRef(session_id=self.names.session_id, call_id=call_id, attempt=attempt)

    def program(
        self, *operations: engine_pb2.Operation, call_id: str = "c-1", deadline_unix_ms: int = 0
    ) -> engine_pb2.RunProgram:
        program = engine_pb2.RunProgram(
            version=VERSION, ref=self.ref(call_id), tenant="default", name="test", operations=operations
        )
        program.deadline_unix_ms = deadline_unix_ms
        for operation in program.operations:
            task = getattr(operation, str(operation.WhichOneof("kind")))
            task.context_id = f"{self.names.session_id}/{call_id}/1/{task.context_id}"
        return program

    def text(self, content: str) -> engine_pb2.Operation:
        return engine_pb2.Operation(fill=engine_pb2.Fill(template_text=content))

    def value(self, variable_id: str, *transforms: str) -> engine_pb2.Operation:
        source = engine_pb2.VariableSource(
            variable_id=variable_id, final_subject=self.names.final(variable_id), transforms=transforms
        )
        return engine_pb2.Operation(fill=engine_pb2.Fill(variable=source))

    def pending(self, variable_id: str, *transforms: str, expected_tokens: int = 0) -> engine_pb2.Operation:
        """A fill of a variable that may still be produced."""
        operation = self.value(variable_id, *transforms)
        operation.fill.variable.pending = True
        operation.fill.variable.expected_tokens = expected_tokens
        return operation

    def output(self, variable_id: str, *transforms: str, **sampling: object) -> engine_pb2.Operation:
        sink = engine_pb2.VariableSink(
            variable_id=variable_id,
            delta_subject=self.names.delta,
            final_subject=self.names.final(variable_id),
            transforms=transforms,
        )
        settings = common_pb2.Sampling(**({"max_tokens": 40, "ignore_eos": True} | sampling))  # type: ignore[arg-type]
        return engine_pb2.Operation(generate=engine_pb2.Generate(sampling=settings, output=sink))

    async def set(self, bus: Bus, variable_id: str, text: str) -> None:
        await Finals(bus).publish(self.names.final(variable_id), FinalRecord(variable_id, text=text))


async def text_of(bus: Bus, session: Session, variable_id: str) -> str:
    """A variable's value, which has to be there."""
    record = await Finals(bus).read(session.names.final(variable_id))
    assert record is not None
    assert record.text is not None
    return record.text


class Reports:
    """Events in order; waits for the one a test looks for."""

    def __init__(self) -> None:
        self.events: list[engine_pb2.AttachRequest] = []
        self._changed = asyncio.Event()

    def put(self, event: engine_pb2.AttachRequest) -> None:
        self.events.append(event)
        self._changed.set()

    def kinds(self, call_id: str = "") -> list[str]:
        """What was reported, of one call or of all; heartbeats left out."""
        found = []
        for event in self.events:
            kind = str(event.WhichOneof("event"))
            ref = getattr(getattr(event, kind), "ref", None)
            if kind != "heartbeat" and (not call_id or (ref is not None and ref.call_id == call_id)):
                found.append(kind)
        return found

    async def until(self, holds: Callable[[engine_pb2.AttachRequest], bool]) -> engine_pb2.AttachRequest:
        """The first event that `holds` is true of."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for event in self.events:
                    if holds(event):
                        return event
                self._changed.clear()
                await self._changed.wait()

    async def kind(self, kind: str, call_id: str = "c-1") -> engine_pb2.AttachRequest:
        """The first event of a kind about a call."""

        def holds(event: engine_pb2.AttachRequest) -> bool:
            return event.WhichOneof("event") == kind and getattr(event, kind).ref.call_id == call_id

        return await self.until(holds)

    async def end(self, call_id: str = "c-1") -> engine_pb2.AttachRequest:
        """How a call ended."""
        ends = ("done", "failed", "cancelled")

        def holds(event: engine_pb2.AttachRequest) -> bool:
            kind = event.WhichOneof("event")
            return kind in ends and getattr(event, kind).ref.call_id == call_id

        return await self.until(holds)

    async def failure(self, call_id: str = "c-1") -> common_pb2.Failure:
        """What a call failed with."""
        return (await self.kind("failed", call_id)).failed.failure


@asynccontextmanager
async def programs_on(
    backend: Backend, bus: Bus, features: Features | None = None
) -> AsyncIterator[tuple[Programs, Reports]]:
    """Programs over a backend, reporting to the test."""
    reports = Reports()
    async with DeltaWriter(bus, "e-test") as writer:
        press = Press(Finals(bus), writer, Feeds(bus, forget_ended=True), reports.put)
        programs = Programs(Tools.of("e-test", backend, press, features or Features()))
        yield programs, reports
        await programs.abandon()
