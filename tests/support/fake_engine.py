"""An engine without a model: it speaks the real control protocol and writes real finals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.engine.v1.engine_pb2_grpc import EngineControlServiceStub
from parrot_runtime import rpc
from parrot_runtime.errors import Fault
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.writer import DeltaWriter

Play = Callable[["FakeEngine", engine_pb2.RunProgram], Awaitable[None]]


class FakeEngine:
    """Takes programs; what becomes of each is up to `play`, a coroutine function."""

    def __init__(self, bus: Bus, engine_id: str, model: str, capacity: int, play: Play) -> None:
        self.bus = bus
        self.finals = Finals(bus)
        self.engine_id = engine_id
        self.programs: list[engine_pb2.RunProgram] = []
        self.cancelled: list[engine_pb2.AttemptRef] = []
        self.most_at_once = 0
        self.ended = asyncio.Event()
        self.registered: engine_pb2.Registered | None = None
        self.refused: Fault | None = None
        self._model = model
        self._capacity = capacity
        self._play = play
        self.freed: list[str] = []
        self.instance_id = ""
        self._claimed: tuple[engine_pb2.AttemptRef, ...] = ()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._outgoing: asyncio.Queue[engine_pb2.AttachRequest] = asyncio.Queue()
        self._stream: Any = None

    def say(self, **event: Any) -> None:
        """Sends an event."""
        self._outgoing.put_nowait(engine_pb2.AttachRequest(**event))

    async def write(self, program: engine_pb2.RunProgram, text: str, offset_bytes: int = 0) -> None:
        """Streams the beginning of every output, and says so."""
        ref = program.ref
        async with DeltaWriter(self.bus, self.engine_id) as writer:
            for sink in outputs(program):
                writer.append(
                    sink.delta_subject,
                    variable_id=sink.variable_id,
                    call_id=ref.call_id,
                    attempt=ref.attempt,
                    offset_bytes=offset_bytes,
                    text=text,
                )
        await self.bus.client.flush()
        for sink in outputs(program):
            self.say(streaming=engine_pb2.AttemptStreaming(ref=ref, variable_id=sink.variable_id))

    async def publish(self, program: engine_pb2.RunProgram, text: str | None = None) -> None:
        """Puts every output's final on the bus."""
        for sink in outputs(program):
            record = FinalRecord(
                sink.variable_id,
                program.ref.call_id,
                program.ref.attempt,
                text=text if text is not None else f"text of {sink.variable_id}",
            )
            await self.finals.publish(sink.final_subject, record)

    def done(self, program: engine_pb2.RunProgram) -> None:
        """Says that all of it is done."""
        usage = common_pb2.Usage(prompt_tokens=7, cached_tokens=3, output_tokens=5)
        timings = common_pb2.Timings(
            queue_ms=1,
            prefill_ms=2,
            decode_ms=3,
            static_prefill_ms=4,
            dynamic_prefill_ms=5,
            static_prefill_tokens=6,
            dynamic_prefill_tokens=0xFFFFFFFF,
        )
        done = engine_pb2.AttemptDone(
            ref=program.ref, usage=usage, timings=timings, provenance=self.provenance()
        )
        self.say(done=done)

    def provenance(self) -> common_pb2.Provenance:
        """What it says that its outputs were made with."""
        return common_pb2.Provenance(
            engine_id=self.engine_id,
            model=self._model,
            dtype="float32",
            backend="sim",
            backend_version="1.2",
            attention="none",
            tensor_parallel=1,
            batch_invariant=True,
            version="0.1",
        )

    def fail(self, program: engine_pb2.RunProgram, kind: str, message: str = "as the test wants") -> None:
        """Says that it failed."""
        failure = common_pb2.Failure(type=kind, message=message)
        self.say(failed=engine_pb2.AttemptFailed(ref=program.ref, failure=failure))

    def kill(self) -> None:
        """Goes away without a word."""
        self._stream.cancel()

    async def leave(self) -> None:
        """Says goodbye, as one that has drained does."""
        await self._stream.write(engine_pb2.AttachRequest(draining=engine_pb2.Draining()))
        await self._stream.done_writing()

    async def run(self, address: str, claimed: tuple[engine_pb2.AttemptRef, ...]) -> None:
        """Stays attached until killed."""
        self._claimed = claimed
        async with rpc.channel(address) as channel:
            stub: Any = EngineControlServiceStub(channel)
            self._stream = stub.Attach()
            registration = engine_pb2.Registration(
                engine_id=self.engine_id,
                model=self._model,
                context_window_tokens=2048,
                backend="sim",
                version="1.2",
                dtype="float32",
                attention="none",
                parrot_version="0.1",
                capacity=self._capacity,
                attempts=claimed,
                instance_id=self.instance_id,
            )
            sender = asyncio.create_task(self._send(registration))
            try:
                async for command in self._stream:
                    self._take(command)
            except aio.AioRpcError as error:
                self.refused = rpc.fault_of(error, "manager")
            except asyncio.CancelledError:
                pass
            finally:
                self.ended.set()
                for task in (sender, *self._running.values()):
                    task.cancel()
                await asyncio.gather(sender, *self._running.values(), return_exceptions=True)

    async def _send(self, registration: engine_pb2.Registration) -> None:
        await self._stream.write(engine_pb2.AttachRequest(registration=registration))
        while True:
            await self._stream.write(await self._outgoing.get())

    def _take(self, command: engine_pb2.AttachResponse) -> None:
        if command.HasField("registered"):
            self.registered = command.registered
        elif command.HasField("run"):
            self.programs.append(command.run)
            task = asyncio.create_task(self._play_out(command.run))
            self._running[_key(command.run.ref)] = task
            self.most_at_once = max(self.most_at_once, len(self._running))
        elif command.HasField("adopt"):
            known = {_key(ref) for ref in self._claimed} | self._running.keys()
            answer = engine_pb2.AttemptsAdopted()
            for ref in command.adopt.refs:
                (answer.refs if _key(ref) in known else answer.unknown).append(ref)
            self.say(adopted=answer)
        elif command.HasField("free"):
            self.freed += command.free.context_ids
        elif command.HasField("cancel"):
            self.cancelled.append(command.cancel.ref)
            task_or_none = self._running.pop(_key(command.cancel.ref), None)
            if task_or_none is not None:
                task_or_none.cancel()
            self.say(cancelled=engine_pb2.AttemptCancelled(ref=command.cancel.ref))

    async def _play_out(self, program: engine_pb2.RunProgram) -> None:
        self.say(started=engine_pb2.AttemptStarted(ref=program.ref))
        try:
            await self._play(self, program)
        finally:
            self._running.pop(_key(program.ref), None)


async def finish(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """The usual: every output is written and done."""
    await engine.publish(program)
    engine.done(program)


async def hang(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Never comes to an end."""
    await asyncio.Event().wait()


async def hang_streaming(engine: FakeEngine, program: engine_pb2.RunProgram) -> None:
    """Writes a beginning, and never comes to an end."""
    await engine.write(program, "a beginning")
    await asyncio.Event().wait()


@asynccontextmanager
async def attached(
    address: str,
    bus: Bus,
    *,
    engine_id: str = "e-1",
    model: str = "m",
    capacity: int = 4,
    play: Play = finish,
    claimed: tuple[engine_pb2.AttemptRef, ...] = (),
    instance_id: str = "",
) -> AsyncIterator[FakeEngine]:
    """An engine for the length of the `async with`."""
    engine = FakeEngine(bus, engine_id, model, capacity, play)
    engine.instance_id = instance_id
    task = asyncio.create_task(engine.run(address, claimed))
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def outputs(program: engine_pb2.RunProgram) -> list[engine_pb2.VariableSink]:
    """Where a program writes."""
    return [op.generate.output for op in program.operations if op.HasField("generate")]


def _key(ref: engine_pb2.AttemptRef) -> str:
    return f"{ref.session_id}/{ref.call_id}/{ref.attempt}"
